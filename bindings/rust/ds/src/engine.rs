//! Trains one model: making an engine, steps, data, questions.
use std::ops::Range;
use std::path::Path;
use std::ptr;

use ds_sys as sys;

use crate::batch::Batch;
use crate::comm::Comm;
use crate::dataset::Dataset;
use crate::element::DType;
use crate::error::{check, Result};
use crate::ffi::{
    c_enum, c_option, c_path, c_text, describe, make, pointer, sized, text, to_i64, to_usize,
    Handle,
};
use crate::model::{self, Model, Rejected};
use crate::panics::PanicSlot;
use crate::tensor::{raw_list, Tensor, TensorRef};

c_enum! {
    /// Why a step was not applied.
    Skip {
        /// Not a boundary: more micro batches belong to this step.
        Accumulating = DS_SKIP_ACCUMULATING,
        /// A gradient was NaN or infinite; weights and moments are untouched.
        NonFinite = DS_SKIP_NON_FINITE,
        /// The gradient norm was above gradient_skip_norm; weights and moments are untouched.
        LargeNorm = DS_SKIP_LARGE_NORM,
    }
}

/// The first gradient that was not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BadGradient {
    /// Index of its parameter.
    pub parameter: usize,
    /// Its row-major index in that parameter.
    pub element: usize,
    /// Its value: NaN or an infinity.
    pub value: f64,
}

/// What a step did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// Optimizer steps so far, skipped ones included.
    pub step: u64,
    /// Micro batches so far.
    pub micro_steps: u64,
    /// Samples so far.
    pub samples: u64,
    /// Labels of this step that count towards the loss, of all micro batches and processes.
    pub tokens: u64,
    /// Weights changed.
    pub applied: bool,
    /// Why not.
    pub skip: Option<Skip>,
    /// Mean loss of this step's micro batches; NaN when gradients were the program's and it gave
    /// none ([`Engine::set_loss`]).
    pub loss: f64,
    /// Global norm of the gradients before clipping; `None` when it was not finite.
    pub grad_norm: Option<f64>,
    /// Learning rate of this step.
    pub lr: f64,
    /// What the loss was multiplied by.
    pub loss_scale: f64,
    /// Wall time of this step.
    pub seconds: f64,
    /// Of `seconds`, in forward passes; 0 without `wall_clock_breakdown`.
    pub forward_seconds: f64,
    /// In backward passes.
    pub backward_seconds: f64,
    /// In [`Engine::step`].
    pub update_seconds: f64,
    /// With the configuration's `distillation`, what `loss` is made of besides losses of routers:
    /// mean loss with the labels; else NaN.
    pub label_loss: f64,
    /// kd_temp^2 x mean divergence from the teacher; else NaN.
    pub teacher_loss: f64,
    /// The first gradient that was not finite.
    pub first_bad: Option<BadGradient>,
}

impl StepReport {
    fn of(raw: &sys::ds_step_report) -> StepReport {
        let count = |value: i64| u64::try_from(value).unwrap_or(0);
        let bad = (raw.first_bad_parameter >= 0).then(|| BadGradient {
            parameter: to_usize(raw.first_bad_parameter),
            element: to_usize(raw.first_bad_element),
            value: raw.first_bad_value,
        });
        let skipped = raw.skip_reason != sys::DS_SKIP_NONE;
        StepReport {
            step: count(raw.step),
            micro_steps: count(raw.micro_steps),
            samples: count(raw.samples),
            tokens: count(raw.tokens),
            applied: raw.applied != 0,
            skip: skipped.then(|| Skip::from_raw(raw.skip_reason)),
            loss: raw.loss,
            grad_norm: Some(raw.grad_norm).filter(|&norm| norm >= 0.0),
            lr: raw.lr,
            loss_scale: raw.loss_scale,
            seconds: raw.seconds,
            forward_seconds: raw.forward_seconds,
            backward_seconds: raw.backward_seconds,
            update_seconds: raw.update_seconds,
            label_loss: raw.label_loss,
            teacher_loss: raw.teacher_loss,
            first_bad: bad,
        }
    }
}

/// How far an engine is, and its sizes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EngineInfo {
    /// Optimizer steps so far, skipped ones included.
    pub step: u64,
    /// Micro batches so far.
    pub micro_steps: u64,
    /// Samples so far.
    pub samples: u64,
    /// Samples of a micro batch of this process.
    pub micro_batch_size: usize,
    /// Micro batches of a step.
    pub accumulation_steps: usize,
    /// Samples of a step, of all processes.
    pub train_batch_size: usize,
    /// What losses are multiplied by before their gradients are taken: 1 unless fp16 trains.
    pub loss_scale: f64,
    /// 0 to 3.
    pub zero_stage: u8,
    /// Type that the engine computes in.
    pub compute_dtype: DType,
}

/// How an engine is made: its configuration, how that is read, and the group it trains with.
#[must_use]
pub struct EngineBuilder<'a> {
    source: Source<'a>,
    options: Option<&'a str>,
    comm: Option<&'a Comm>,
}

enum Source<'a> {
    Text(&'a str),
    File(&'a Path),
}

impl<'a> EngineBuilder<'a> {
    /// How the configuration is read: options of `ds_engine_create`, such as
    /// `{"resolve_auto": true, "set": {"optimizer.params.lr": 1e-4}}`.
    pub fn options(mut self, options: &'a str) -> Self {
        self.options = Some(options);
        self
    }

    /// The group to train with; otherwise this process alone. The engine keeps what it needs of it.
    pub fn comm(mut self, comm: &'a Comm) -> Self {
        self.comm = Some(comm);
        self
    }

    /// Makes the engine, which takes the model over.
    pub fn build(self, model: Model) -> Result<Engine> {
        self.try_build(model).map_err(Into::into)
    }

    /// The same, but an error gives the model back.
    #[allow(unknown_lints)] // older ones do not know the next
    #[allow(clippy::result_large_err)] // it holds what the caller wants back
    pub fn try_build(self, model: Model) -> std::result::Result<Engine, Rejected> {
        match self.make(&model) {
            Ok(handle) => Ok(Engine {
                handle,
                model,
                panic: PanicSlot::default(),
            }),
            Err(error) => Err(Rejected { model, error }),
        }
    }

    fn make(self, model: &Model) -> Result<Handle<sys::ds_engine>> {
        let options = c_option("options", self.options)?;
        let options = pointer(&options);
        let comm = self.comm.map_or(ptr::null_mut(), Comm::raw);
        match self.source {
            Source::Text(config) => {
                let config = c_text("the configuration", config)?;
                // SAFETY: reads the texts; the engine keeps model and group by itself.
                make(|out| unsafe {
                    sys::ds_engine_create(config.as_ptr(), options, model.raw(), comm, out)
                })
            }
            Source::File(path) => {
                let path = c_path(path)?;
                // SAFETY: as above.
                make(|out| unsafe {
                    sys::ds_engine_create_from_file(path.as_ptr(), options, model.raw(), comm, out)
                })
            }
        }
    }
}

/// Trains one model, which it owns.
///
/// What changes weights takes the engine by `&mut`, what reads takes it by `&`; so weights that a
/// program looks at without a copy do not change under it.
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("ds-doc-engine-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let book = folder.join("book.txt");
/// # std::fs::write(&book, "It was a dark and stormy night; the rain fell in torrents. ".repeat(40)).unwrap();
/// let shape = r#"{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 16,
///                 "n_layer": 1, "n_head": 2}"#;
/// let config = r#"{"train_micro_batch_size_per_gpu": 4,
///                  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}"#;
/// let mut engine = ds::Engine::new(config, ds::Model::new(shape, 1)?)?;
/// engine.set_dataset(Some(&ds::Dataset::text(&book, 32, None)?))?;
/// let mut losses = Vec::new();
/// for report in engine.steps(20) {
///     losses.push(report?.loss);
/// }
/// assert!(losses[19] < losses[0]);
/// engine.save(folder.join("run"), None)?;
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), ds::Error>(())
/// ```
pub struct Engine {
    // Ends before the model, whose lent memory it writes to.
    pub(crate) handle: Handle<sys::ds_engine>,
    pub(crate) model: Model,
    pub(crate) panic: PanicSlot,
}

// SAFETY: a handle may be used from any thread, one at a time, and the model and the callbacks
// inside are Send. It is not Sync: a second thread's call would be refused, so the type leaves the
// lock to the program. `interrupter` gives what may be called from other threads.
unsafe impl Send for Engine {}

impl Engine {
    /// Trains a model with a DeepSpeed configuration, in this process alone.
    pub fn new(config: &str, model: Model) -> Result<Engine> {
        Engine::builder(config).build(model)
    }

    /// An engine with options or a group.
    pub fn builder(config: &str) -> EngineBuilder<'_> {
        EngineBuilder {
            source: Source::Text(config),
            options: None,
            comm: None,
        }
    }

    /// An engine whose configuration is in a file.
    pub fn from_file(path: &Path) -> EngineBuilder<'_> {
        EngineBuilder {
            source: Source::File(path),
            options: None,
            comm: None,
        }
    }

    pub(crate) fn raw(&self) -> *mut sys::ds_engine {
        self.handle.raw()
    }

    /// Ends a call in which the progress callback may have run.
    pub(crate) fn heard<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.panic.resume();
        }
        result
    }

    /// The model, to be read between steps.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Ends the engine and gives the model back.
    pub fn into_model(self) -> Model {
        let Engine { handle, model, .. } = self;
        drop(handle);
        model
    }

    // ---- Steps ---------------------------------------------------------------------------------

    /// The loss of one micro batch, which remembers what [`Engine::backward`] needs. The batch has
    /// labels.
    pub fn forward(&mut self, batch: &Batch<'_>) -> Result<Tensor<'static>> {
        let batch = batch.raw();
        // SAFETY: the batch's tensors are borrowed for longer than the call.
        let loss = make(|out| unsafe { sys::ds_engine_forward(self.raw(), &batch, out) })?;
        Ok(Tensor::of(loss))
    }

    /// Adds the gradient of the last forward's loss, divided by the number of micro batches.
    pub fn backward(&mut self, loss: &Tensor<'_>) -> Result<()> {
        // SAFETY: takes handles alone.
        check(unsafe { sys::ds_engine_backward(self.raw(), loss.raw()) })
    }

    /// Ends a micro batch; at a boundary it clips, updates and clears the gradients.
    pub fn step(&mut self) -> Result<StepReport> {
        let mut report: sys::ds_step_report = sized();
        // SAFETY: fills the struct.
        check(unsafe { sys::ds_engine_step(self.raw(), &mut report) })?;
        Ok(StepReport::of(&report))
    }

    /// The data that [`Engine::train_batch`] reads; `None` takes it away.
    pub fn set_dataset(&mut self, dataset: Option<&Dataset>) -> Result<()> {
        let dataset = dataset.map_or(ptr::null(), |dataset| dataset.raw() as *const _);
        // SAFETY: the engine keeps the data set by itself.
        check(unsafe { sys::ds_engine_set_dataset(self.raw(), dataset) })
    }

    /// One optimizer step over the data set.
    pub fn train_batch(&mut self) -> Result<StepReport> {
        let mut report: sys::ds_step_report = sized();
        // SAFETY: fills the struct.
        let done = check(unsafe { sys::ds_engine_train_batch(self.raw(), &mut report) });
        self.heard(done)?;
        Ok(StepReport::of(&report))
    }

    /// So many steps of [`Engine::train_batch`], made as the iterator is asked for them. It ends
    /// after an error.
    pub fn steps(&mut self, count: usize) -> Steps<'_> {
        Steps {
            engine: self,
            left: count,
        }
    }

    /// Mean loss over a data set, without training: over all of it, or so many micro batches.
    pub fn evaluate(&mut self, dataset: &Dataset, max_batches: Option<usize>) -> Result<f64> {
        let most = max_batches.map_or(0, to_i64);
        let mut loss = 0.0;
        // SAFETY: writes one number.
        let done =
            check(unsafe { sys::ds_engine_evaluate(self.raw(), dataset.raw(), most, &mut loss) });
        self.heard(done)?;
        Ok(loss)
    }

    /// Says whether the next steps are accumulation boundaries; `None`: the configuration decides.
    pub fn set_boundary(&self, boundary: Option<bool>) -> Result<()> {
        let boundary = boundary.map_or(-1, i32::from);
        // SAFETY: takes numbers alone.
        check(unsafe { sys::ds_engine_set_boundary(self.raw(), boundary) })
    }

    /// For a process that has no further batches while others may: takes part in their steps until
    /// every process has called it.
    pub fn join(&mut self) -> Result<()> {
        // SAFETY: takes the handle alone.
        check(unsafe { sys::ds_engine_join(self.raw()) })
    }

    // ---- The program's gradients ---------------------------------------------------------------

    /// Adds gradients of all parameters, in the model's order, to those of the open step. They are
    /// read before the call returns.
    pub fn add_gradients<'t, R: AsRef<Tensor<'t>>>(&self, gradients: &[R]) -> Result<()> {
        let list = raw_list(gradients);
        // SAFETY: `list` has so many handles, which are read. Views of gradients borrow the engine
        // exclusively, so there are none.
        check(unsafe {
            sys::ds_engine_add_gradients(self.raw(), ptr::null(), list.as_ptr(), to_i64(list.len()))
        })
    }

    /// Adds gradients of the given parameters, one each.
    pub fn add_gradients_of<'t, R: AsRef<Tensor<'t>>>(
        &self,
        parameters: &[usize],
        gradients: &[R],
    ) -> Result<()> {
        if parameters.len() != gradients.len() {
            let (n, m) = (parameters.len(), gradients.len());
            return Err(crate::Error::invalid(format!(
                "{n} parameters have {m} gradients"
            )));
        }
        let list = raw_list(gradients);
        let indices = indices(parameters);
        let count = to_i64(list.len());
        // SAFETY: both lists have `count` elements; as above.
        check(unsafe {
            sys::ds_engine_add_gradients(self.raw(), indices.as_ptr(), list.as_ptr(), count)
        })
    }

    /// Says what the loss of the open micro batch was, where gradients are the program's.
    pub fn set_loss(&self, loss: f64) -> Result<()> {
        // SAFETY: takes numbers alone.
        check(unsafe { sys::ds_engine_set_loss(self.raw(), loss) })
    }

    /// Gives up the open step: its gradients are cleared, weights and progress are as before it.
    pub fn discard_gradients(&mut self) -> Result<()> {
        // SAFETY: takes the handle alone; views of gradients are gone.
        check(unsafe { sys::ds_engine_discard_gradients(self.raw()) })
    }

    /// The memory that a parameter's gradient gathers in: add to it in place, then step.
    pub fn view_gradient(&mut self, parameter: usize) -> Result<Tensor<'_>> {
        // SAFETY: the engine is borrowed exclusively while the tensor lives.
        Ok(Tensor::of(unsafe { self.gradient_memory(parameter) }?))
    }

    /// The memory of all weights, to be read, and of all gradients, to be added to, without a copy.
    pub fn views(&mut self) -> Result<Views<'_>> {
        let count = self.model.info()?.parameters;
        let (mut parameters, mut gradients) = (Vec::new(), Vec::new());
        for index in 0..count {
            // SAFETY: the engine, and with it the model, is borrowed exclusively while the views
            // live; no two of them show the same memory.
            unsafe {
                parameters.push(TensorRef::of(model::view_parameter(&self.model, index)?));
                gradients.push(Tensor::of(self.gradient_memory(index)?));
            }
        }
        Ok(Views {
            parameters,
            gradients,
        })
    }

    /// # Safety
    /// The caller gives the tensor a lifetime in which Rust's rules of sharing hold.
    unsafe fn gradient_memory(&self, parameter: usize) -> Result<Handle<sys::ds_tensor>> {
        make(|out| sys::ds_engine_view_gradient(self.raw(), to_i64(parameter), out))
    }

    // ---- Weights -------------------------------------------------------------------------------

    /// Sets a parameter, and its master copy, from an `f32` tensor of its shape.
    pub fn set_parameter(&mut self, index: usize, value: &Tensor<'_>) -> Result<()> {
        // SAFETY: the engine is borrowed exclusively, so no view is alive.
        unsafe { model::set_parameter(&self.model, index, value) }
    }

    /// A parameter's memory, to be written, where the precision does not make it read-only.
    pub fn view_parameter_mut(&mut self, index: usize) -> Result<Tensor<'_>> {
        // SAFETY: the engine, and with it the model, is borrowed exclusively while the tensor lives.
        Ok(Tensor::of(unsafe {
            model::view_parameter(&self.model, index)
        }?))
    }

    // ---- Questions -----------------------------------------------------------------------------

    /// Counters, batch sizes and the loss scale.
    pub fn info(&self) -> Result<EngineInfo> {
        // SAFETY: fills the struct.
        let info: sys::ds_engine_info =
            describe(|out| unsafe { sys::ds_engine_describe(self.raw(), out) })?;
        let count = |value: i64| u64::try_from(value).unwrap_or(0);
        Ok(EngineInfo {
            step: count(info.step),
            micro_steps: count(info.micro_steps),
            samples: count(info.samples),
            micro_batch_size: to_usize(info.micro_batch_size),
            accumulation_steps: to_usize(info.accumulation_steps),
            train_batch_size: to_usize(info.train_batch_size),
            loss_scale: info.loss_scale,
            zero_stage: u8::try_from(info.zero_stage).unwrap_or(0),
            compute_dtype: DType::from_raw(info.compute_dtype),
        })
    }

    /// The configuration as resolved, with the origin of each value and warnings, as JSON.
    pub fn config(&self) -> Result<String> {
        // SAFETY: gives a text.
        text(|out| unsafe { sys::ds_engine_config(self.raw(), out) })
    }

    /// Memory by tag, now and at most, in bytes, as JSON.
    pub fn memory_report(&self) -> Result<String> {
        // SAFETY: gives a text.
        text(|out| unsafe { sys::ds_engine_memory_report(self.raw(), out) })
    }

    /// The profile of the step that `flops_profiler` asked for, as JSON; `null` before that.
    pub fn profile(&self) -> Result<String> {
        // SAFETY: gives a text.
        text(|out| unsafe { sys::ds_engine_profile(self.raw(), out) })
    }

    /// Loads and losses of the last step's experts, as JSON; `null` where the model has none.
    pub fn experts(&self) -> Result<String> {
        // SAFETY: gives a text.
        text(|out| unsafe { sys::ds_engine_experts(self.raw(), out) })
    }

    /// The part of a parameter, as elements of its packed values, whose master and optimizer state
    /// this process holds.
    pub fn local_range(&self, parameter: usize) -> Result<Range<usize>> {
        let (mut first, mut count) = (0, 0);
        // SAFETY: writes two numbers.
        check(unsafe {
            sys::ds_engine_local_range(self.raw(), to_i64(parameter), &mut first, &mut count)
        })?;
        Ok(to_usize(first)..to_usize(first + count))
    }
}

/// Indices for the library.
pub(crate) fn indices(parameters: &[usize]) -> Vec<i64> {
    parameters
        .iter()
        .map(|&parameter| to_i64(parameter))
        .collect()
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.info() {
            Ok(info) => write!(
                f,
                "Engine(step {}, ZeRO stage {}, {}, {:?})",
                info.step, info.zero_stage, info.compute_dtype, self.model
            ),
            Err(error) => write!(f, "Engine({error})"),
        }
    }
}

/// Weights and gradients where they lie ([`Engine::views`]), by index of the parameter.
#[derive(Debug)]
pub struct Views<'e> {
    /// Weights as the engine computes with them.
    pub parameters: Vec<TensorRef<'e>>,
    /// Gradients as they gather.
    pub gradients: Vec<Tensor<'e>>,
}

/// The steps of [`Engine::steps`].
pub struct Steps<'e> {
    engine: &'e mut Engine,
    left: usize,
}

impl Steps<'_> {
    /// The engine, between two steps: to save, evaluate, or copy the model.
    pub fn engine(&mut self) -> &mut Engine {
        self.engine
    }
}

impl Iterator for Steps<'_> {
    type Item = Result<StepReport>;

    fn next(&mut self) -> Option<Result<StepReport>> {
        self.left = self.left.checked_sub(1)?;
        let report = self.engine.train_batch();
        if report.is_err() {
            self.left = 0;
        }
        Some(report)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }
}

impl std::iter::FusedIterator for Steps<'_> {}
