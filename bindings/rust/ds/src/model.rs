//! Architecture and weights.
use std::ffi::c_void;
use std::ops::Deref;
use std::path::Path;

use ds_sys as sys;

use crate::element::DType;
use crate::error::{check, Result};
use crate::ffi::{
    c_option, c_path, c_text, describe, make, pointer, text, to_i64, to_usize, Handle,
};
use crate::parameter::Parameter;
use crate::tensor::{Device, DeviceKind, Tensor, TensorRef};

/// Sizes and place of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// Parameters (tensors), tied ones once.
    pub parameters: usize,
    /// Numbers in all of them.
    pub elements: usize,
    /// Numbers in those that are not frozen.
    pub trainable_elements: usize,
    /// Token ids are in `0..vocab_size`; 0 for own parameters.
    pub vocab_size: usize,
    /// Longest sequence; 0 where nothing limits it.
    pub max_positions: usize,
    /// Where the weights are.
    pub device: Device,
}

/// What a parameter of a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParameterInfo {
    /// Its name.
    pub name: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Numbers in it.
    pub elements: usize,
    /// Type in which the program holds it; `F32` for built-in models.
    pub dtype: DType,
    /// It is not frozen.
    pub trainable: bool,
    /// Weight decay applies.
    pub decays: bool,
}

/// An architecture and its weights.
///
/// An [`Engine`](crate::Engine) takes a model over to train it and shows it between steps
/// ([`Engine::model`](crate::Engine::model)). Views of its memory borrow it, so no step can be made
/// while one lives:
///
/// ```compile_fail
/// # fn f(mut engine: ds::Engine) -> ds::Result<()> {
/// let view = engine.model().view_parameter(0)?;
/// engine.train_batch()?; // error: `engine` is borrowed by `view`
/// println!("{:?}", view.as_slice::<f32>()?);
/// # Ok(()) }
/// ```
pub struct Model {
    handle: Handle<sys::ds_model>,
    // Memory that the model writes new values to, by parameter; ends after the handle.
    lent: Vec<Option<Tensor<'static>>>,
}

// SAFETY: a handle may be used from any thread, one at a time; so may lent memory. It is not Sync:
// a second thread's call would be refused, so the type leaves the lock to the program.
unsafe impl Send for Model {}

impl Model {
    fn of(handle: Handle<sys::ds_model>) -> Model {
        Model {
            handle,
            lent: Vec::new(),
        }
    }
    pub(crate) fn raw(&self) -> *mut sys::ds_model {
        self.handle.raw()
    }

    /// Makes a model with fresh weights from a Hugging Face `config.json`; same seed, same weights.
    pub fn new(config: &str, seed: i64) -> Result<Model> {
        let config = c_text("the configuration", config)?;
        // SAFETY: reads the text.
        let handle = make(|out| unsafe { sys::ds_model_create(config.as_ptr(), seed, out) })?;
        Ok(Model::of(handle))
    }

    /// Opens the weights of a Hugging Face folder or of a checkpoint.
    pub fn open(folder: impl AsRef<Path>) -> Result<Model> {
        Model::open_with(folder, None)
    }

    /// The same with options of `ds_model_open`: another head, changed members of `config.json`.
    pub fn open_with(folder: impl AsRef<Path>, options: Option<&str>) -> Result<Model> {
        let folder = c_path(folder.as_ref())?;
        let options = c_option("options", options)?;
        // SAFETY: reads the texts.
        let handle =
            make(|out| unsafe { sys::ds_model_open(folder.as_ptr(), pointer(&options), out) })?;
        Ok(Model::of(handle))
    }

    /// Makes a model of the program's own parameters: it computes gradients, an engine does the
    /// rest.
    pub fn from_parameters(parameters: Vec<Parameter<'_>>) -> Result<Model> {
        let list: Vec<sys::ds_parameter> = parameters.iter().map(Parameter::raw).collect();
        // SAFETY: the list points into `parameters`, which lives until the end of the call. Lent
        // memory is kept by the model below, borrowed exclusively, for as long as it is written to.
        let handle = make(|out| unsafe {
            sys::ds_model_create_from_parameters(list.as_ptr(), to_i64(list.len()), out)
        })?;
        let lent = parameters
            .into_iter()
            .map(|parameter| parameter.lent)
            .collect();
        Ok(Model { handle, lent })
    }

    /// A second model of the same weights that shares nothing with this one: it can generate,
    /// evaluate or be exported while an engine trains this one on.
    pub fn copy(&self) -> Result<Model> {
        // SAFETY: gives a handle; the weights are read.
        let handle = make(|out| unsafe { sys::ds_model_copy(self.raw(), out) })?;
        Ok(Model::of(handle))
    }

    /// Sizes and place.
    pub fn info(&self) -> Result<ModelInfo> {
        // SAFETY: fills the struct.
        let info: sys::ds_model_info =
            describe(|out| unsafe { sys::ds_model_describe(self.raw(), out) })?;
        Ok(ModelInfo {
            parameters: to_usize(info.parameters),
            elements: to_usize(info.elements),
            trainable_elements: to_usize(info.trainable_elements),
            vocab_size: to_usize(info.vocab_size),
            max_positions: to_usize(info.max_positions),
            device: Device {
                kind: DeviceKind::from_raw(info.device_kind),
                index: info.device_index,
            },
        })
    }

    /// The architecture as a `config.json`; `null` for own parameters.
    pub fn config(&self) -> Result<String> {
        // SAFETY: gives a text.
        text(|out| unsafe { sys::ds_model_config(self.raw(), out) })
    }

    /// Moves the weights to `"cpu"` or a GPU such as `"cuda:0"`, where engines made later train it.
    pub fn set_device(&mut self, device: &str) -> Result<()> {
        let device = c_text("the device", device)?;
        // SAFETY: reads the text.
        check(unsafe { sys::ds_model_set_device(self.raw(), device.as_ptr()) })
    }

    /// Orders the work on the model's GPU with a `cudaStream_t` of the program, both ways; null ends it.
    ///
    /// # Safety
    /// The stream is one of the model's GPU, and lives until another or null is given, or until the
    /// model and its engine are gone.
    pub unsafe fn set_stream(&mut self, stream: *mut c_void) -> Result<()> {
        check(sys::ds_model_set_stream(self.raw(), stream))
    }

    /// Index of a parameter by its name, by that of a tied tensor or by the one in Hugging Face
    /// files.
    pub fn parameter_index(&self, name: &str) -> Result<usize> {
        let name = c_text("the name", name)?;
        let mut index = 0;
        // SAFETY: reads the text, writes one number.
        check(unsafe { sys::ds_model_parameter_index(self.raw(), name.as_ptr(), &mut index) })?;
        Ok(to_usize(index))
    }

    /// What a parameter is.
    pub fn parameter(&self, index: usize) -> Result<ParameterInfo> {
        let at = to_i64(index);
        // SAFETY: fills the struct.
        let info: sys::ds_parameter_info =
            describe(|out| unsafe { sys::ds_model_parameter_describe(self.raw(), at, out) })?;
        // SAFETY: gives a text.
        let name = text(|out| unsafe { sys::ds_model_parameter_name(self.raw(), at, out) })?;
        Ok(ParameterInfo {
            name,
            shape: info
                .shape
                .iter()
                .take(info.ndim as usize)
                .map(|&size| to_usize(size))
                .collect(),
            elements: to_usize(info.elements),
            dtype: DType::from_raw(info.dtype),
            trainable: info.trainable != 0,
            decays: info.decays != 0,
        })
    }

    /// All parameters in their order, as a JSON list with names, shapes, groups and aliases.
    pub fn parameters(&self) -> Result<String> {
        // SAFETY: gives a text.
        text(|out| unsafe { sys::ds_model_parameters(self.raw(), out) })
    }

    /// A copy of a parameter, `f32`: the master copy where an engine keeps one.
    pub fn get_parameter(&self, index: usize) -> Result<Tensor<'static>> {
        // SAFETY: gives a handle.
        let handle =
            make(|out| unsafe { sys::ds_model_get_parameter(self.raw(), to_i64(index), out) })?;
        Ok(Tensor::of(handle))
    }

    /// Sets a parameter from an `f32` tensor of its shape. A model that an engine trains is reached
    /// by [`Engine::set_parameter`](crate::Engine::set_parameter).
    pub fn set_parameter(&mut self, index: usize, value: &Tensor<'_>) -> Result<()> {
        // SAFETY: `value` is read; views of the parameter borrow `self` and are gone.
        unsafe { set_parameter(self, index, value) }
    }

    /// A parameter's memory as the model computes with it, without a copy, to be read.
    pub fn view_parameter(&self, index: usize) -> Result<TensorRef<'_>> {
        // SAFETY: the memory is changed by what takes the model or its engine by `&mut` alone.
        Ok(TensorRef::of(unsafe { view_parameter(self, index) }?))
    }

    /// The same to be written, where the engine's precision does not make it read-only.
    pub fn view_parameter_mut(&mut self, index: usize) -> Result<Tensor<'_>> {
        // SAFETY: the model is borrowed exclusively while the tensor lives.
        Ok(Tensor::of(unsafe { view_parameter(self, index) }?))
    }

    /// The memory that a parameter was registered with ([`Parameter::lend`]), with its value of now.
    pub fn lent(&self, index: usize) -> Option<&Tensor<'static>> {
        self.lent.get(index)?.as_ref()
    }

    /// Freezes the parameters whose names match a pattern (`*` is any text, `?` one character), or
    /// lets them train again.
    pub fn set_trainable(&mut self, pattern: &str, trainable: bool) -> Result<()> {
        let pattern = c_text("the pattern", pattern)?;
        // SAFETY: reads the text.
        check(unsafe {
            sys::ds_model_set_trainable(self.raw(), pattern.as_ptr(), trainable.into())
        })
    }

    /// Adds low-rank adapters and freezes everything else; options are those of
    /// `ds_model_add_lora`, such as `{"r": 8, "target_modules": "all-linear"}`.
    pub fn add_lora(&mut self, options: &str) -> Result<()> {
        let options = c_text("options", options)?;
        // SAFETY: reads the text.
        check(unsafe { sys::ds_model_add_lora(self.raw(), options.as_ptr()) })
    }

    /// Adds the adapters' products to the weights and removes the adapters.
    pub fn merge_lora(&mut self) -> Result<()> {
        // SAFETY: takes the handle alone.
        check(unsafe { sys::ds_model_merge_lora(self.raw()) })
    }

    /// Writes the adapters alone, in PEFT's layout.
    pub fn save_adapter(&self, folder: impl AsRef<Path>, dtype: DType) -> Result<()> {
        let folder = c_path(folder.as_ref())?;
        // SAFETY: reads the text.
        check(unsafe { sys::ds_model_save_adapter(self.raw(), folder.as_ptr(), dtype.raw()) })
    }

    /// Reads adapters in PEFT's layout and freezes everything else.
    pub fn load_adapter(&mut self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = c_path(folder.as_ref())?;
        // SAFETY: reads the text.
        check(unsafe { sys::ds_model_load_adapter(self.raw(), folder.as_ptr()) })
    }

    /// Writes a checkpoint of the weights alone; without a tag it is named `weights`.
    pub fn save(&self, folder: impl AsRef<Path>, tag: Option<&str>) -> Result<()> {
        let (folder, tag) = (c_path(folder.as_ref())?, c_option("the tag", tag)?);
        // SAFETY: reads the texts.
        check(unsafe { sys::ds_model_save(self.raw(), folder.as_ptr(), pointer(&tag)) })
    }

    /// Writes `config.json` and safetensors so that Transformers loads them, in files of at most so
    /// many bytes of numbers; `None`: one file.
    pub fn export(
        &self,
        folder: impl AsRef<Path>,
        dtype: DType,
        max_shard_bytes: Option<usize>,
    ) -> Result<()> {
        let folder = c_path(folder.as_ref())?;
        let most = max_shard_bytes.map_or(0, to_i64);
        // SAFETY: reads the text.
        check(unsafe { sys::ds_model_export(self.raw(), folder.as_ptr(), dtype.raw(), most) })
    }
}

/// Sets a parameter; for an engine, which may not hand its model out by `&mut`.
///
/// # Safety
/// No view of the parameter is alive.
pub(crate) unsafe fn set_parameter(model: &Model, index: usize, value: &Tensor<'_>) -> Result<()> {
    check(sys::ds_model_set_parameter(
        model.raw(),
        to_i64(index),
        value.raw(),
    ))
}

/// A parameter's memory.
///
/// # Safety
/// The caller gives the tensor a lifetime in which Rust's rules of sharing hold.
pub(crate) unsafe fn view_parameter(model: &Model, index: usize) -> Result<Handle<sys::ds_tensor>> {
    make(|out| sys::ds_model_view_parameter(model.raw(), to_i64(index), out))
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.info() {
            Ok(info) => write!(
                f,
                "Model({} parameters, {} elements, {} trainable, {})",
                info.parameters, info.elements, info.trainable_elements, info.device
            ),
            Err(error) => write!(f, "Model({error})"),
        }
    }
}

/// The model of an engine that has ended, with the error that ended it or kept it from being made.
#[derive(Debug)]
pub struct Rejected {
    /// The model, as it was.
    pub model: Model,
    /// Why there is no engine.
    pub error: crate::Error,
}

impl Deref for Rejected {
    type Target = crate::Error;
    fn deref(&self) -> &crate::Error {
        &self.error
    }
}
impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}
impl std::error::Error for Rejected {}
impl From<Rejected> for crate::Error {
    fn from(rejected: Rejected) -> crate::Error {
        rejected.error
    }
}
