//! Panics of callbacks: they may not unwind through C, so they are kept and go on after the call.
use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};

/// Where a callback leaves its panic for the call that it was made from.
#[derive(Clone, Default)]
pub(crate) struct PanicSlot(Arc<Mutex<Option<Box<dyn Any + Send>>>>);

impl PanicSlot {
    /// Runs a callback; `None` when it panicked.
    pub(crate) fn run<T>(&self, callback: impl FnOnce() -> T) -> Option<T> {
        // What the callback was changing is not seen by the library, and the panic goes on later.
        match catch_unwind(AssertUnwindSafe(callback)) {
            Ok(value) => Some(value),
            Err(panic) => {
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                None
            }
        }
    }

    /// Runs a callback that may ask to stop: what the C interface wants as an answer.
    pub(crate) fn run_flow(&self, callback: impl FnOnce() -> ControlFlow<()>) -> i32 {
        match self.run(callback) {
            Some(ControlFlow::Continue(())) => 0,
            Some(ControlFlow::Break(())) | None => 1,
        }
    }

    /// Lets a kept panic go on. To be called after every call that may run the callback.
    pub(crate) fn resume(&self) {
        let panic = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}
