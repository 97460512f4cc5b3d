//! How calls of the C interface look from Rust: owned handles, out-parameters, texts.
use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::path::Path;
use std::ptr::{self, NonNull};

use ds_sys as sys;

use crate::error::{check, check_version, Error, Result};

/// A kind of handle, and what ends one.
pub(crate) trait Object {
    /// # Safety
    /// `raw` is a handle of this kind, or one that has ended, which the library tells apart.
    unsafe fn destroy(raw: *mut Self);
}

macro_rules! objects {
    ($($kind:ident: $destroy:ident,)*) => {
        $(impl Object for sys::$kind {
            unsafe fn destroy(raw: *mut Self) {
                sys::$destroy(raw);
            }
        })*
    };
}
objects! {
    ds_tensor: ds_tensor_destroy,
    ds_comm: ds_comm_destroy,
    ds_work: ds_work_destroy,
    ds_tokenizer: ds_tokenizer_destroy,
    ds_dataset: ds_dataset_destroy,
    ds_model: ds_model_destroy,
    ds_generator: ds_generator_destroy,
    ds_engine: ds_engine_destroy,
    ds_scope: ds_scope_destroy,
    ds_optimizer: ds_optimizer_destroy,
    ds_io: ds_io_destroy,
}

/// A handle that this program owns. All `_destroy` functions may be called from any thread and wait
/// for nobody.
pub(crate) struct Handle<T: Object>(NonNull<T>);

impl<T: Object> Handle<T> {
    /// Takes over what a call gave through an out-parameter.
    pub(crate) fn own(raw: *mut T) -> Result<Handle<T>> {
        match NonNull::new(raw) {
            Some(raw) => Ok(Handle(raw)),
            None => Err(Error::new(
                crate::Status::Internal,
                "the library gave no handle",
            )),
        }
    }
    pub(crate) fn raw(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Object> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and ends once.
        unsafe { T::destroy(self.raw()) }
    }
}

/// A handle's number for threads that may outlive the object: the library never uses a number twice
/// and refuses one that has ended.
pub(crate) struct Number<T>(*mut T);

impl<T> Number<T> {
    pub(crate) fn of(raw: *mut T) -> Number<T> {
        Number(raw)
    }
    pub(crate) fn raw(&self) -> *mut T {
        self.0
    }
}
impl<T> Clone for Number<T> {
    fn clone(&self) -> Self {
        Number(self.0)
    }
}
// SAFETY: it is never dereferenced, here or in the library; it is a key of the library's table.
unsafe impl<T> Send for Number<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Number<T> {}

/// Calls what makes an object.
pub(crate) fn make<T: Object>(
    call: impl FnOnce(*mut *mut T) -> sys::ds_status,
) -> Result<Handle<T>> {
    check_version()?;
    let mut out = ptr::null_mut();
    check(call(&mut out))?;
    Handle::own(out)
}

/// Calls what gives a text.
pub(crate) fn text(call: impl FnOnce(*mut *mut c_char) -> sys::ds_status) -> Result<String> {
    let mut out = ptr::null_mut();
    check(call(&mut out))?;
    // SAFETY: on success `out` is a text of the library, ended here.
    unsafe {
        let text = CStr::from_ptr(out).to_string_lossy().into_owned();
        sys::ds_string_free(out);
        Ok(text)
    }
}

/// A struct that begins with its size.
pub(crate) trait Sized64: Default {
    fn set_size(&mut self, size: i64);
}

macro_rules! sized_structs {
    ($($name:ident,)*) => {
        $(impl Sized64 for sys::$name {
            fn set_size(&mut self, size: i64) {
                self.struct_size = size;
            }
        })*
    };
}
sized_structs! {
    ds_allocator, ds_batch, ds_collective, ds_comm_info, ds_dataset_info, ds_engine_info,
    ds_generate_options, ds_generator_info, ds_io_info, ds_io_transfer, ds_model_info, ds_optimizer_info, ds_parameter,
    ds_parameter_info, ds_prompts, ds_step_report, ds_store, ds_tensor_info, ds_tokenizer_info,
}

/// A struct of the interface with its size set and everything else zero.
pub(crate) fn sized<T: Sized64>() -> T {
    let mut value = T::default();
    value.set_size(std::mem::size_of::<T>() as i64);
    value
}

/// Calls what fills a struct.
pub(crate) fn describe<T: Sized64>(call: impl FnOnce(*mut T) -> sys::ds_status) -> Result<T> {
    let mut out = sized::<T>();
    check(call(&mut out))?;
    Ok(out)
}

/// A text for the library, which ends with NUL.
pub(crate) fn c_text(what: &str, text: impl Into<Vec<u8>>) -> Result<CString> {
    CString::new(text).map_err(|error| {
        Error::invalid(format!(
            "{what} has a NUL byte at {}: texts of libds have none",
            error.nul_position()
        ))
    })
}

/// A path for the library.
pub(crate) fn c_path(path: &Path) -> Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    c_text("the path", path.as_os_str().as_bytes())
}

/// An optional text for the library.
pub(crate) fn c_option(what: &str, text: Option<&str>) -> Result<Option<CString>> {
    text.map(|text| c_text(what, text)).transpose()
}

/// The pointer of an optional text; NULL for none.
pub(crate) fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

/// Indices and counts of the library are never negative where this is used.
pub(crate) fn to_usize(value: i64) -> usize {
    usize::try_from(value).unwrap_or(0)
}

/// An index or a count for the library; what is too large becomes an index that it refuses.
pub(crate) fn to_i64(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Makes an enum of constants of the header, with `Unknown` for what is newer.
macro_rules! c_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$entry:meta])* $variant:ident = $constant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$entry])* $variant,)*
            /// A value that is newer than this crate.
            Unknown,
        }
        impl $name {
            #[allow(dead_code)]
            pub(crate) fn from_raw(raw: i32) -> $name {
                match raw {
                    $(ds_sys::$constant => $name::$variant,)*
                    _ => $name::Unknown,
                }
            }
            #[allow(dead_code)]
            pub(crate) fn raw(self) -> i32 {
                match self {
                    $($name::$variant => ds_sys::$constant,)*
                    $name::Unknown => -1,
                }
            }
        }
    };
}
pub(crate) use c_enum;
