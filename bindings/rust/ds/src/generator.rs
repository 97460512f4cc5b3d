//! Runs a model without training it: text, logits, hidden states.
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::os::raw::c_void;
use std::sync::mpsc::{sync_channel, Receiver};
use std::thread::JoinHandle;

use ds_sys as sys;

use crate::batch::Batch;
use crate::comm::Comm;
use crate::error::{check, Error, Result, Status};
use crate::ffi::{
    c_enum, c_option, describe, make, pointer, sized, to_i64, to_usize, Handle, Number,
};
use crate::model::Model;
use crate::panics::PanicSlot;
use crate::tensor::Tensor;

c_enum! {
    /// How a generator holds weights.
    WeightForm {
        /// The model's own, as they are at each call.
        Model = DS_WEIGHTS_MODEL,
        /// A copy in 32 bits.
        F32 = DS_WEIGHTS_FLOAT32,
        /// A copy in bfloat16.
        Bf16 = DS_WEIGHTS_BFLOAT16,
        /// Matrices of linear layers in 8 bits, the rest bfloat16.
        Int8 = DS_WEIGHTS_INT8,
        /// The same in 4 bits.
        Int4 = DS_WEIGHTS_INT4,
    }
}

/// What a generator holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GeneratorInfo {
    /// The form of the weights.
    pub weights: WeightForm,
    /// Bytes of all weights; 0 for the model's own.
    pub bytes: usize,
    /// Bytes of those that each new token reads whole; 0 for the model's own.
    pub bytes_per_token: usize,
    /// Elements that share a scale; 0 = a row, or no such form.
    pub group_size: usize,
    /// Threads that it works with; 0 for the model's own weights.
    pub threads: usize,
    /// Groups have no minimum.
    pub symmetric: bool,
    /// Bytes of those that the parameters take in `f32`; 0 for the model's own.
    pub bytes_saved: i64,
    /// Bytes of weights in a file that were read since the generator was made, or asked for.
    pub bytes_read: usize,
    /// How often a pass used a matrix of an expert that rests in a file.
    pub expert_uses: usize,
    /// How often it found that in memory.
    pub expert_hits: usize,
}

/// How [`Generator::generate`] chooses tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateOptions {
    /// New tokens at most; 0 = 64.
    pub max_tokens: usize,
    /// 0 = always the likeliest token.
    pub temperature: f64,
    /// Keep the k likeliest; 0 = all.
    pub top_k: usize,
    /// Keep the likeliest whose sum reaches p; 0 = all.
    pub top_p: f64,
    /// Same seed, same text.
    pub seed: i64,
    /// The token that ends the text.
    pub stop_token: Option<i32>,
    /// On a GPU, launch kernels one by one instead of recording them once as a graph.
    pub no_graphs: bool,
}

impl GenerateOptions {
    pub(crate) fn raw(&self) -> sys::ds_generate_options {
        sys::ds_generate_options {
            max_tokens: to_i64(self.max_tokens),
            temperature: self.temperature,
            top_k: to_i64(self.top_k),
            top_p: self.top_p,
            seed: self.seed,
            stop_token: self.stop_token.unwrap_or(0),
            has_stop_token: self.stop_token.is_some().into(),
            no_graphs: self.no_graphs.into(),
            ..sized()
        }
    }
}

/// Runs a model without training it.
///
/// ```
/// # let config = r#"{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 16,
/// #                  "n_layer": 1, "n_head": 2}"#;
/// let model = ds::Model::new(config, 1)?;
/// let mut generator = ds::Generator::new(&model)?;
/// let options = ds::GenerateOptions { max_tokens: 5, temperature: 1.0, ..Default::default() };
/// let mut tokens = Vec::new();
/// for token in generator.tokens(&[72, 105], &options)? {
///     tokens.push(token?);
/// }
/// assert_eq!(tokens, generator.generate(&[72, 105], &options)?);
/// # Ok::<(), ds::Error>(())
/// ```
pub struct Generator<'m> {
    handle: Handle<sys::ds_generator>,
    model: PhantomData<&'m ()>,
}

// SAFETY: a handle may be used from any thread, one at a time. The model that it may borrow is not
// Sync, but a generator reaches it through the library alone, which refuses two calls at once.
// It is not Sync itself: a second thread's call would be refused.
unsafe impl Send for Generator<'_> {}

impl<'m> Generator<'m> {
    /// Runs the model's own weights. It borrows the model, so an engine that trains it goes on when
    /// the generator is gone.
    pub fn new(model: &'m Model) -> Result<Generator<'m>> {
        // SAFETY: gives a handle.
        let handle =
            make(|out| unsafe { sys::ds_generator_create(model.raw(), std::ptr::null(), out) })?;
        Ok(Generator {
            handle,
            model: PhantomData,
        })
    }
}

impl Generator<'static> {
    /// Holds a copy of the weights in another form; the model is needed no longer.
    pub fn prepare(model: &Model, weights: WeightForm) -> Result<Generator<'static>> {
        let name = match weights {
            WeightForm::F32 => "fp32",
            WeightForm::Bf16 => "bf16",
            WeightForm::Int8 => "int8",
            WeightForm::Int4 => "int4",
            WeightForm::Model | WeightForm::Unknown => {
                return Err(Error::invalid("a prepared form is F32, Bf16, Int8 or Int4"))
            }
        };
        Generator::prepare_with(model, &format!("{{\"weights\": \"{name}\"}}"))
    }

    /// The same with options of `ds_generator_create`, such as
    /// `{"weights": "int4", "group_size": 32}`.
    pub fn prepare_with(model: &Model, options: &str) -> Result<Generator<'static>> {
        let options = c_option("options", Some(options))?;
        // SAFETY: reads the text and gives a handle.
        let handle =
            make(|out| unsafe { sys::ds_generator_create(model.raw(), pointer(&options), out) })?;
        let generator = Generator {
            handle,
            model: PhantomData,
        };
        if generator.info()?.weights == WeightForm::Model {
            let advice = "these options ask for the model's own weights: use Generator::new";
            return Err(Error::invalid(advice));
        }
        Ok(generator)
    }
}

impl<'c> Generator<'c> {
    /// Of ranks that share the model's experts: each holds a copy of its part, in the form that the
    /// options of `ds_generator_create_shared` say (`fp32` without). Every rank of the group makes
    /// this call and then each of the generator's calls, with texts of its own or
    /// [`Generator::take_part`].
    pub fn share(model: &Model, comm: &'c Comm, options: Option<&str>) -> Result<Generator<'c>> {
        let options = c_option("options", options)?;
        // SAFETY: reads the text and gives a handle; the group is borrowed for as long.
        let handle = make(|out| unsafe {
            sys::ds_generator_create_shared(model.raw(), pointer(&options), comm.raw(), out)
        })?;
        Ok(Generator {
            handle,
            model: PhantomData,
        })
    }

    /// Of a rank without a text, among ranks that share experts: computes what the others' texts
    /// need of its experts, until all are done. Without other ranks it returns at once.
    pub fn take_part(&mut self) -> Result<()> {
        // SAFETY: a call on a handle.
        check(unsafe { sys::ds_generator_take_part(self.raw()) })
    }
}

/// What a callback for tokens needs while a call runs.
struct OnToken<F> {
    callback: F,
    panic: PanicSlot,
}

unsafe extern "C" fn on_token<F: FnMut(i32) -> ControlFlow<()>>(
    user_data: *mut c_void,
    token: i32,
) -> i32 {
    // SAFETY: it is that of the call below, which runs on this thread.
    let state = &mut *user_data.cast::<OnToken<F>>();
    let callback = &mut state.callback;
    state.panic.run_flow(|| callback(token))
}

/// Calls `ds_generator_generate`; a panic of the callback goes on from here.
fn generate<F: FnMut(i32) -> ControlFlow<()>>(
    generator: *mut sys::ds_generator,
    prompt: &[i32],
    options: &GenerateOptions,
    callback: F,
) -> Result<()> {
    let prompt = Tensor::from_slice(prompt, &[prompt.len()])?;
    let options = options.raw();
    let mut state = OnToken {
        callback,
        panic: PanicSlot::default(),
    };
    let user_data = (&mut state as *mut OnToken<F>).cast();
    // SAFETY: everything that is handed over lives until the end of the call.
    let ids = make(|out| unsafe {
        let (prompt, each) = (prompt.raw(), Some(on_token::<F> as _));
        sys::ds_generator_generate(generator, prompt, &options, each, user_data, out)
    });
    state.panic.resume();
    ids.map(drop)
}

impl<'m> Generator<'m> {
    pub(crate) fn raw(&self) -> *mut sys::ds_generator {
        self.handle.raw()
    }

    /// What it holds.
    pub fn info(&self) -> Result<GeneratorInfo> {
        // SAFETY: fills the struct.
        let info: sys::ds_generator_info =
            describe(|out| unsafe { sys::ds_generator_describe(self.raw(), out) })?;
        Ok(GeneratorInfo {
            weights: WeightForm::from_raw(info.weights),
            bytes: to_usize(info.bytes),
            bytes_per_token: to_usize(info.bytes_per_token),
            group_size: to_usize(info.group_size),
            threads: usize::try_from(info.threads).unwrap_or(0),
            symmetric: info.symmetric != 0,
            bytes_saved: info.bytes_saved,
            bytes_read: to_usize(info.bytes_read),
            expert_uses: to_usize(info.expert_uses),
            expert_hits: to_usize(info.expert_hits),
        })
    }

    /// Continues a prompt: the new tokens, without the prompt and the stop token.
    pub fn generate(&mut self, prompt: &[i32], options: &GenerateOptions) -> Result<Vec<i32>> {
        let prompt = Tensor::from_slice(prompt, &[prompt.len()])?;
        let options = options.raw();
        // SAFETY: the prompt and the options live until the end of the call.
        let ids = make(|out| unsafe {
            let nothing = std::ptr::null_mut();
            sys::ds_generator_generate(self.raw(), prompt.raw(), &options, None, nothing, out)
        })?;
        Tensor::of(ids).to_vec()
    }

    /// The same with a closure that gets each token at once; with `Break` it ends the text, which is
    /// no error. A panic of the closure goes on after the call.
    pub fn generate_with(
        &mut self,
        prompt: &[i32],
        options: &GenerateOptions,
        mut on_token: impl FnMut(i32) -> ControlFlow<()>,
    ) -> Result<Vec<i32>> {
        let (mut tokens, mut ended) = (Vec::new(), false);
        let result = generate(self.raw(), prompt, options, |token| {
            tokens.push(token);
            let flow = on_token(token);
            ended = flow.is_break();
            flow
        });
        match result {
            Err(error) if !(ended && error.status() == Status::Callback) => Err(error),
            _ => Ok(tokens),
        }
    }

    /// The new tokens one by one, while they are made.
    ///
    /// The call of the library that makes them runs on a thread of its own, because it keeps keys and
    /// values on its stack until it returns, and hands tokens over one at a time: it is never more
    /// than two tokens ahead. Dropping the iterator ends the call and the thread.
    pub fn tokens<'g>(
        &'g mut self,
        prompt: &[i32],
        options: &GenerateOptions,
    ) -> Result<Tokens<'g>> {
        let (prompt, options) = (prompt.to_vec(), options.clone());
        let (sender, receiver) = sync_channel(1);
        let number = Number::of(self.raw());
        let generator = number.clone();
        let work = move || {
            // A reader that is gone wants no more.
            generate(number.raw(), &prompt, &options, |token| {
                match sender.send(token) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            })
        };
        let worker = std::thread::Builder::new()
            .name("ds tokens".into())
            .spawn(work)
            .map_err(|error| {
                Error::new(Status::OutOfMemory, format!("no thread starts: {error}"))
            })?;
        let (receiver, worker) = (Some(receiver), Some(worker));
        Ok(Tokens {
            receiver,
            worker,
            generator,
            borrowed: PhantomData,
        })
    }

    /// What ends a call of this generator from another thread.
    pub fn interrupter(&self) -> GeneratorInterrupter {
        GeneratorInterrupter(Number::of(self.raw()))
    }

    /// A copy of a parameter as the generator's products see it, `f32`.
    pub fn get_parameter(&mut self, index: usize) -> Result<Tensor<'static>> {
        // SAFETY: gives a handle.
        let handle =
            make(|out| unsafe { sys::ds_generator_get_parameter(self.raw(), to_i64(index), out) })?;
        Ok(Tensor::of(handle))
    }

    /// Logits of a batch without labels: `f32` `[batch, length, vocabulary]`, or `[batch, classes]`
    /// of a model that classifies.
    pub fn logits(&mut self, batch: &Batch<'_>) -> Result<Tensor<'static>> {
        let batch = batch.raw();
        // SAFETY: the batch's tensors are borrowed for longer than the call.
        let handle = make(|out| unsafe { sys::ds_generator_logits(self.raw(), &batch, out) })?;
        Ok(Tensor::of(handle))
    }

    /// Hidden states after the last norm: `f32` `[batch, length, width]`.
    pub fn hidden_states(&mut self, batch: &Batch<'_>) -> Result<Tensor<'static>> {
        let batch = batch.raw();
        // SAFETY: as above.
        let handle =
            make(|out| unsafe { sys::ds_generator_hidden_states(self.raw(), &batch, out) })?;
        Ok(Tensor::of(handle))
    }
}

impl std::fmt::Debug for Generator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.info() {
            Ok(info) => write!(f, "Generator({:?}, {} bytes)", info.weights, info.bytes),
            Err(error) => write!(f, "Generator({error})"),
        }
    }
}

/// Ends the call of a generator that runs now, from any thread.
#[derive(Clone)]
pub struct GeneratorInterrupter(Number<sys::ds_generator>);

impl GeneratorInterrupter {
    /// Ends the call before its next token, with [`Status::Aborted`]. Without such a call, or when
    /// the generator is gone, nothing happens.
    pub fn interrupt(&self) {
        // SAFETY: any number is fine; one of a generator that has ended is refused.
        unsafe { sys::ds_generator_interrupt(self.0.raw()) };
    }
}

/// The tokens of [`Generator::tokens`]. It ends after an error.
pub struct Tokens<'g> {
    receiver: Option<Receiver<i32>>,
    worker: Option<JoinHandle<Result<()>>>,
    generator: Number<sys::ds_generator>,
    borrowed: PhantomData<&'g mut ()>,
}

impl Iterator for Tokens<'_> {
    type Item = Result<i32>;

    fn next(&mut self) -> Option<Result<i32>> {
        if let Ok(token) = self.receiver.as_ref()?.recv() {
            return Some(Ok(token));
        }
        self.receiver = None;
        match self.worker.take()?.join() {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Err(error)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl std::iter::FusedIterator for Tokens<'_> {}

impl Drop for Tokens<'_> {
    fn drop(&mut self) {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => return,
        };
        self.receiver = None; // the next token finds nobody and ends the call
                              // SAFETY: the generator is borrowed, so it lives; a long prompt need not be read to its end.
        unsafe { sys::ds_generator_interrupt(self.generator.raw()) };
        let _ = worker.join();
    }
}
