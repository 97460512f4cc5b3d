//! Where messages of the library go. Until a sink is set, warnings and errors go to standard error.
use std::ffi::CStr;
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

use ds_sys as sys;

use crate::error::{check, Result};
use crate::ffi::c_enum;

c_enum! {
    /// Levels of messages.
    Level {
        /// For finding errors.
        Debug = DS_LOG_DEBUG,
        /// What goes on.
        Info = DS_LOG_INFO,
        /// What may be wrong.
        Warning = DS_LOG_WARNING,
        /// What went wrong.
        Error = DS_LOG_ERROR,
        /// As the lowest level: nothing is logged.
        Off = DS_LOG_OFF,
    }
}

unsafe extern "C" fn each<F: Fn(Level, &str, &str)>(
    user_data: *mut c_void,
    level: i32,
    component: *const c_char,
    text: *const c_char,
) {
    // SAFETY: it is that of `set_sink`, shared by threads; texts live for the call.
    let sink = &*(user_data as *const F);
    let (component, text) = (CStr::from_ptr(component), CStr::from_ptr(text));
    // A sink has nobody to report to; the hook has told the panic.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        sink(
            Level::from_raw(level),
            &component.to_string_lossy(),
            &text.to_string_lossy(),
        );
    }));
}

unsafe extern "C" fn release<F>(user_data: *mut c_void) {
    let sink = Box::from_raw(user_data.cast::<F>());
    let _ = catch_unwind(AssertUnwindSafe(|| drop(sink)));
}

/// Sets the sink of the process: a closure of level, component and text, called on whatever thread
/// logs, possibly on several at once. It must not call this crate. Its panics are told by the panic
/// hook and otherwise lost.
///
/// ```
/// ds::log::set_sink(|level, component, text| println!("{level:?} {component}: {text}"))?;
/// ds::log::set_level(ds::log::Level::Info)?;
/// ds::log::reset_sink()?;
/// # Ok::<(), ds::Error>(())
/// ```
pub fn set_sink<F: Fn(Level, &str, &str) + Send + Sync + 'static>(sink: F) -> Result<()> {
    let sink = Box::into_raw(Box::new(sink));
    // SAFETY: the closure lives until `release`.
    let done = check(unsafe { sys::ds_log_set(Some(each::<F>), sink.cast(), Some(release::<F>)) });
    if done.is_err() {
        // SAFETY: a call that fails leaves it with us.
        drop(unsafe { Box::from_raw(sink) });
    }
    done
}

/// Messages go to standard error again.
pub fn reset_sink() -> Result<()> {
    // SAFETY: NULL is the default.
    check(unsafe { sys::ds_log_set(None, ptr::null_mut(), None) })
}

/// The lowest level that is logged; the default is [`Level::Warning`].
pub fn set_level(level: Level) -> Result<()> {
    // SAFETY: takes a number.
    check(unsafe { sys::ds_log_set_level(level.raw()) })
}
