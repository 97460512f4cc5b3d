//! Long calls of an engine: saving and loading, progress, interruption.
use std::ffi::CStr;
use std::ops::ControlFlow;
use std::os::raw::{c_char, c_void};
use std::path::Path;
use std::ptr;

use ds_sys as sys;

use crate::engine::Engine;
use crate::error::{check, Result};
use crate::ffi::{c_option, c_path, pointer, text, Number};
use crate::panics::PanicSlot;
use crate::tokenizer::Tokenizer;

/// How far a long call of an engine has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// `"train_batch"` (parts are micro batches), `"evaluate"` (micro batches), `"save"`
    /// (parameters) or `"load"` (bytes).
    pub call: &'a str,
    /// Parts that are done.
    pub done: u64,
    /// Parts of the call.
    pub total: u64,
}

/// The program's closure, and where its panics go.
struct OnProgress<F> {
    callback: F,
    panic: PanicSlot,
}

unsafe extern "C" fn on_progress<F: FnMut(Progress<'_>) -> ControlFlow<()>>(
    user_data: *mut c_void,
    call: *const c_char,
    done: i64,
    total: i64,
) -> i32 {
    // SAFETY: it is that of `set_progress`; calls of an engine do not overlap.
    let state = &mut *user_data.cast::<OnProgress<F>>();
    let call = CStr::from_ptr(call).to_str().unwrap_or("");
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    let callback = &mut state.callback;
    state.panic.run_flow(|| {
        callback(Progress {
            call,
            done: count(done),
            total: count(total),
        })
    })
}

unsafe extern "C" fn release<F>(user_data: *mut c_void) {
    let state = Box::from_raw(user_data.cast::<OnProgress<F>>());
    let panic = state.panic.clone();
    // A panic of what the closure owned has nobody to go to; the hook has told it.
    let _ = panic.run(|| drop(state));
}

impl Engine {
    /// Sets a closure that hears the progress of this engine's long calls, on the thread that makes
    /// them; with `Break` it ends the call, with [`Status::Callback`](crate::Status::Callback). A
    /// panic of it ends the call and goes on from there. It must not own objects of this crate:
    /// when it is dropped, the library may not be called.
    pub fn set_progress<F>(&mut self, callback: F) -> Result<()>
    where
        F: FnMut(Progress<'_>) -> ControlFlow<()> + Send + 'static,
    {
        let state = Box::into_raw(Box::new(OnProgress {
            callback,
            panic: self.panic.clone(),
        }));
        // SAFETY: `state` lives until `release`.
        let done = check(unsafe {
            let (each, end) = (Some(on_progress::<F> as _), Some(release::<F> as _));
            sys::ds_engine_set_progress(self.raw(), each, state.cast(), end)
        });
        if done.is_err() {
            // SAFETY: a call that fails leaves the closure with us.
            drop(unsafe { Box::from_raw(state) });
        }
        done
    }

    /// Takes the closure away.
    pub fn clear_progress(&mut self) -> Result<()> {
        // SAFETY: NULL is nothing.
        check(unsafe { sys::ds_engine_set_progress(self.raw(), None, ptr::null_mut(), None) })
    }

    /// What ends a call of this engine from another thread.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter(Number::of(self.raw()))
    }

    /// Saves everything a bitwise resume needs, as `folder/tag`; without a tag it is named
    /// `global_step<N>`.
    pub fn save(&self, folder: impl AsRef<Path>, tag: Option<&str>) -> Result<()> {
        let (folder, tag) = (c_path(folder.as_ref())?, c_option("the tag", tag)?);
        // SAFETY: reads the texts.
        let done =
            check(unsafe { sys::ds_engine_save(self.raw(), folder.as_ptr(), pointer(&tag)) });
        self.heard(done)
    }

    /// Waits for a save that goes on beside the training (`checkpoint.writer.decoupled`).
    pub fn save_wait(&self) -> Result<()> {
        // SAFETY: takes the handle alone.
        check(unsafe { sys::ds_engine_save_wait(self.raw()) })
    }

    /// Loads a checkpoint; without a tag the newest valid one.
    pub fn load(&mut self, folder: impl AsRef<Path>, tag: Option<&str>) -> Result<()> {
        self.load_with(folder, tag, None)
    }

    /// The same with options of `ds_engine_load`, such as `{"load_optimizer_states": false}`.
    pub fn load_with(
        &mut self,
        folder: impl AsRef<Path>,
        tag: Option<&str>,
        options: Option<&str>,
    ) -> Result<()> {
        let (folder, tag) = (c_path(folder.as_ref())?, c_option("the tag", tag)?);
        let options = c_option("options", options)?;
        // SAFETY: reads the texts; views of the memory that changes borrow the engine and are gone.
        let done = check(unsafe {
            let options = pointer(&options);
            sys::ds_engine_load(self.raw(), folder.as_ptr(), pointer(&tag), options)
        });
        self.heard(done)
    }

    /// Attaches a tokenizer, which checkpoints then carry; `None` takes it away.
    pub fn set_tokenizer(&self, tokenizer: Option<&Tokenizer>) -> Result<()> {
        let tokenizer = tokenizer.map_or(ptr::null(), |tokenizer| tokenizer.raw() as *const _);
        // SAFETY: the engine keeps the tokenizer by itself.
        check(unsafe { sys::ds_engine_set_tokenizer(self.raw(), tokenizer) })
    }

    /// Attaches a JSON document of the program, which checkpoints then carry; `None` takes it away.
    pub fn set_client_state(&self, json: Option<&str>) -> Result<()> {
        let json = c_option("the client state", json)?;
        // SAFETY: reads the text.
        check(unsafe { sys::ds_engine_set_client_state(self.raw(), pointer(&json)) })
    }

    /// The program's document, as set or loaded; `null` when there is none.
    pub fn client_state(&self) -> Result<String> {
        // SAFETY: gives a text.
        text(|out| unsafe { sys::ds_engine_client_state(self.raw(), out) })
    }
}

/// Ends the call of an engine that runs now, from any thread.
#[derive(Clone)]
pub struct Interrupter(Number<sys::ds_engine>);

impl Interrupter {
    /// Ends the call before its next part, with [`Status::Aborted`](crate::Status::Aborted).
    /// Without such a call, or when the engine is gone, nothing happens.
    pub fn interrupt(&self) {
        // SAFETY: any number is fine; one of an engine that has ended is refused.
        unsafe { sys::ds_engine_interrupt(self.0.raw()) };
    }
}
