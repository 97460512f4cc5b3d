//! Parameters made whole for a while, and values of parameters, gradients and optimizer states.
use std::marker::PhantomData;
use std::ptr;

use ds_sys as sys;

use crate::engine::{indices, Engine};
use crate::error::{check, Error, Result};
use crate::ffi::{c_option, c_text, describe, make, pointer, text, to_i64, to_usize, Handle};
use crate::json::Value;
use crate::tensor::{Tensor, TensorRef};

/// Parameters of an engine made whole, to compute with, at every ZeRO stage ([`Engine::scope`]).
///
/// It borrows the engine, so no step can be made while it, or a tensor of it, is alive; several may
/// be open at once, and gradients may be added.
pub struct Scope<'e> {
    handle: Handle<sys::ds_scope>,
    count: usize,
    engine: PhantomData<&'e Engine>,
}

// SAFETY: a scope enters its engine, which is one thread's: like `&Engine` it stays there. It has a
// handle, so it is neither Send nor Sync by itself; nothing is to be said here.

/// Copies of master values that one process may change ([`Engine::edit`]).
///
/// It borrows the engine exclusively: until it ends, no step can be made.
pub struct Edit<'e> {
    handle: Handle<sys::ds_scope>,
    count: usize,
    engine: PhantomData<&'e mut Engine>,
}

/// Opens a scope: its handle and how many parameters it has.
fn open(
    engine: &Engine,
    parameters: Option<&[usize]>,
    mode: sys::ds_scope_mode,
) -> Result<(Handle<sys::ds_scope>, usize)> {
    let list = parameters.map(indices);
    let count = match &list {
        Some(list) => list.len(),
        None => engine.model().info()?.parameters,
    };
    let list = list.as_ref().map_or(ptr::null(), |list| list.as_ptr());
    // SAFETY: `list` is NULL or has `count` elements.
    let handle = make(|out| unsafe {
        sys::ds_engine_open_scope(engine.raw(), list, to_i64(count), mode, out)
    })?;
    Ok((handle, count))
}

/// A parameter of a scope.
///
/// # Safety
/// The caller gives the tensor a lifetime in which Rust's rules of sharing hold.
unsafe fn tensor(scope: &Handle<sys::ds_scope>, position: usize) -> Result<Handle<sys::ds_tensor>> {
    make(|out| sys::ds_scope_tensor(scope.raw(), to_i64(position), out))
}

impl<'e> Scope<'e> {
    /// How many parameters it has.
    pub fn len(&self) -> usize {
        self.count
    }
    /// It has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A parameter by its position in the list that opened the scope. Memory that is gathered for
    /// the scope is given back when the scope and its tensors have ended.
    pub fn tensor(&self, position: usize) -> Result<TensorRef<'e>> {
        // SAFETY: weights change in calls that take the engine by `&mut` alone, which is borrowed.
        Ok(TensorRef::of(unsafe { tensor(&self.handle, position) }?))
    }

    /// All of them, in order.
    pub fn tensors(&self) -> Result<Vec<TensorRef<'e>>> {
        (0..self.count)
            .map(|position| self.tensor(position))
            .collect()
    }

    /// Ends the scope. Dropping it does the same and tells no error.
    pub fn close(self) -> Result<()> {
        // SAFETY: takes the handle alone.
        check(unsafe { sys::ds_scope_close(self.handle.raw()) })
    }
}

impl Edit<'_> {
    /// How many parameters it has.
    pub fn len(&self) -> usize {
        self.count
    }
    /// It has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The `f32` values of a parameter, to be changed, by its position in the list that opened it.
    pub fn tensor(&mut self, position: usize) -> Result<Tensor<'_>> {
        // SAFETY: the copies belong to the scope, which is borrowed exclusively.
        Ok(Tensor::of(unsafe { tensor(&self.handle, position) }?))
    }

    /// All of them, in order.
    pub fn tensors(&mut self) -> Result<Vec<Tensor<'_>>> {
        // SAFETY: as above; no two positions are the same parameter (see `Engine::edit`).
        (0..self.count)
            .map(|at| Ok(Tensor::of(unsafe { tensor(&self.handle, at) }?)))
            .collect()
    }

    /// What process `modifier_rank` has becomes the value in every process. Every process calls it.
    pub fn commit(self, modifier_rank: usize) -> Result<()> {
        let rank = i32::try_from(modifier_rank).unwrap_or(i32::MAX);
        // SAFETY: takes the handle and a number.
        check(unsafe { sys::ds_scope_commit(self.handle.raw(), rank) })
    }

    /// Drops the changes. Every process calls it; dropping the object instead waits for nobody and
    /// tells no error.
    pub fn close(self) -> Result<()> {
        // SAFETY: takes the handle alone.
        check(unsafe { sys::ds_scope_close(self.handle.raw()) })
    }
}

/// What values of a parameter are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values<'a> {
    /// The `f32` master.
    Parameter,
    /// The gradient of the open step, as summed so far.
    Gradient,
    /// A state tensor of the optimizer, by its name ([`Optimizer::state_names`]).
    State(&'a str),
}

impl Values<'_> {
    fn raw(self) -> (sys::ds_value_kind, Option<String>) {
        match self {
            Values::Parameter => (sys::DS_VALUE_PARAMETER, None),
            Values::Gradient => (sys::DS_VALUE_GRADIENT, None),
            Values::State(name) => (sys::DS_VALUE_STATE, Some(name.to_string())),
        }
    }
}

/// How much of a parameter is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All elements, in the parameter's shape; every process makes the call.
    Whole,
    /// This process's part ([`Engine::local_range`]), of one dimension.
    Local,
}

impl Extent {
    fn raw(self) -> sys::ds_extent {
        match self {
            Extent::Whole => sys::DS_EXTENT_WHOLE,
            Extent::Local => sys::DS_EXTENT_LOCAL,
        }
    }
}

impl Engine {
    /// Makes parameters whole in this process, to compute with: the given ones, or all. For models
    /// of own parameters. At ZeRO stage 3 every process opens and closes the same ones in the same
    /// order.
    pub fn scope(&self, parameters: Option<&[usize]>) -> Result<Scope<'_>> {
        let (handle, count) = open(self, parameters, sys::DS_SCOPE_COMPUTE)?;
        Ok(Scope {
            handle,
            count,
            engine: PhantomData,
        })
    }

    /// Copies of the master values of parameters of any model, for one process to change: the given
    /// ones, or all. Every process calls it, between steps.
    pub fn edit(&mut self, parameters: Option<&[usize]>) -> Result<Edit<'_>> {
        let mut sorted = parameters.unwrap_or_default().to_vec();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!(
                "parameter {} is there twice",
                twice[0]
            )));
        }
        let (handle, count) = open(self, parameters, sys::DS_SCOPE_MODIFY)?;
        Ok(Edit {
            handle,
            count,
            engine: PhantomData,
        })
    }

    /// Runs `passes`, whose gradients stay in this process (ZeRO stages 0 and 1): the first step
    /// after it averages their sum over processes. Every process calls it; a step inside is refused.
    pub fn no_sync<T>(&mut self, passes: impl FnOnce(&mut Engine) -> Result<T>) -> Result<T> {
        let (handle, _) = open(self, Some(&[]), sys::DS_SCOPE_NO_SYNC)?;
        let done = passes(self)?;
        // SAFETY: takes the handle alone.
        check(unsafe { sys::ds_scope_close(handle.raw()) })?;
        Ok(done)
    }

    /// An `f32` copy of values of a parameter.
    pub fn get_values(
        &self,
        parameter: usize,
        values: Values<'_>,
        extent: Extent,
    ) -> Result<Tensor<'static>> {
        let (kind, state) = values.raw();
        let state = c_option("the state", state.as_deref())?;
        let (at, state, extent) = (to_i64(parameter), pointer(&state), extent.raw());
        // SAFETY: reads the text and gives a handle.
        let handle = make(|out| unsafe {
            sys::ds_engine_get_values(self.raw(), at, kind, state, extent, out)
        })?;
        Ok(Tensor::of(handle))
    }

    /// Sets values of a parameter. Every process makes the call, with [`Extent::Local`] each with its
    /// part.
    pub fn set_values(
        &mut self,
        parameter: usize,
        values: Values<'_>,
        extent: Extent,
        value: &Tensor<'_>,
    ) -> Result<()> {
        let (kind, state) = values.raw();
        let state = c_option("the state", state.as_deref())?;
        let (at, state, extent) = (to_i64(parameter), pointer(&state), extent.raw());
        // SAFETY: reads the text and the value; views borrow the engine and are gone.
        check(unsafe {
            sys::ds_engine_set_values(self.raw(), at, kind, state, extent, value.raw())
        })
    }

    /// The optimizer inside.
    pub fn optimizer(&self) -> Result<Optimizer<'_>> {
        // SAFETY: gives a handle.
        let handle = make(|out| unsafe { sys::ds_engine_optimizer(self.raw(), out) })?;
        Ok(Optimizer {
            handle,
            engine: PhantomData,
        })
    }

    /// Attaches bytes of the program under a name, which checkpoints then carry.
    pub fn set_blob(&self, name: &str, data: &[u8]) -> Result<()> {
        let name = c_text("the name", name)?;
        let (bytes, size) = (data.as_ptr().cast(), to_i64(data.len()));
        // SAFETY: copies `size` bytes.
        check(unsafe { sys::ds_engine_set_blob(self.raw(), name.as_ptr(), bytes, size) })
    }

    /// Takes attached bytes away.
    pub fn remove_blob(&self, name: &str) -> Result<()> {
        let name = c_text("the name", name)?;
        // SAFETY: NULL with size 0 takes them away.
        check(unsafe { sys::ds_engine_set_blob(self.raw(), name.as_ptr(), ptr::null(), 0) })
    }

    /// Bytes as set or loaded.
    pub fn blob(&self, name: &str) -> Result<Vec<u8>> {
        let name = c_text("the name", name)?;
        // SAFETY: reads the text and gives a handle.
        let bytes = make(|out| unsafe { sys::ds_engine_blob(self.raw(), name.as_ptr(), out) })?;
        Tensor::of(bytes).to_vec()
    }

    /// Names of the attached bytes and how many they are.
    pub fn blobs(&self) -> Result<Vec<(String, usize)>> {
        // SAFETY: gives a text.
        let list = text(|out| unsafe { sys::ds_engine_blobs(self.raw(), out) })?;
        let list = Value::parse(&list)?;
        let size = |value: &Value| to_usize(value.as_i64().unwrap_or(0));
        Ok(list
            .members()
            .iter()
            .map(|(name, value)| (name.clone(), size(value)))
            .collect())
    }
}

/// The optimizer inside an engine ([`Engine::optimizer`]).
pub struct Optimizer<'e> {
    handle: Handle<sys::ds_optimizer>,
    engine: PhantomData<&'e Engine>,
}

/// What an optimizer has done and will do.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OptimizerInfo {
    /// Updates applied so far (Adam's t).
    pub steps: u64,
    /// The learning rates of the next step: one per parameter group, two for Muon's.
    pub rates: Vec<f64>,
}

impl Optimizer<'_> {
    /// Steps and rates.
    pub fn info(&self) -> Result<OptimizerInfo> {
        let raw = self.handle.raw();
        // SAFETY: fills the struct.
        let info: sys::ds_optimizer_info =
            describe(|out| unsafe { sys::ds_optimizer_describe(raw, out) })?;
        let mut rates = Vec::new();
        for index in 0..info.rate_count {
            let mut rate = 0.0;
            // SAFETY: writes one number.
            check(unsafe { sys::ds_optimizer_rate(raw, index, &mut rate) })?;
            rates.push(rate);
        }
        Ok(OptimizerInfo {
            steps: u64::try_from(info.steps).unwrap_or(0),
            rates,
        })
    }

    /// Sets every group's rate of the next step; a configured scheduler overrides it after that.
    pub fn set_lr(&self, lr: f64) -> Result<()> {
        // SAFETY: takes numbers alone.
        check(unsafe { sys::ds_optimizer_set_lr(self.handle.raw(), lr) })
    }

    /// Names of the state tensors of a parameter, such as `exp_avg`.
    pub fn state_names(&self, parameter: usize) -> Result<Vec<String>> {
        let (raw, at) = (self.handle.raw(), to_i64(parameter));
        // SAFETY: gives a text.
        let names = text(|out| unsafe { sys::ds_optimizer_state_names(raw, at, out) })?;
        let names = Value::parse(&names)?;
        Ok(names
            .elements()
            .iter()
            .filter_map(|name| name.as_str().map(String::from))
            .collect())
    }
}
