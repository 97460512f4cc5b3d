//! What a failed call says: [`Error`], its [`Status`], and how calls are checked.
use std::ffi::CStr;
use std::fmt;

use ds_sys as sys;

/// The result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $constant:ident,)*) => {
        /// What a caller can do about a failure.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Status {
            $($(#[$doc])* $name,)*
            /// A code that is newer than this crate.
            Other(i32),
        }
        impl Status {
            pub(crate) fn from_code(code: sys::ds_status) -> Status {
                match code {
                    $(sys::$constant => Status::$name,)*
                    other => Status::Other(other),
                }
            }
            /// The number in `ds.h`.
            pub fn code(self) -> i32 {
                match self {
                    $(Status::$name => sys::$constant,)*
                    Status::Other(code) => code,
                }
            }
        }
    };
}

statuses! {
    /// The call is wrong: fix the caller.
    InvalidArgument = DS_ERR_INVALID_ARGUMENT,
    /// The configuration document is wrong: fix the document.
    Config = DS_ERR_CONFIG,
    /// Memory ran out; the message holds the memory report.
    OutOfMemory = DS_ERR_OUT_OF_MEMORY,
    /// A device failed.
    Device = DS_ERR_DEVICE,
    /// Another process failed or disagreed.
    Comm = DS_ERR_COMM,
    /// A file could not be read or written.
    Io = DS_ERR_IO,
    /// This build or version does not do that.
    Unsupported = DS_ERR_UNSUPPORTED,
    /// The operation was aborted from elsewhere.
    Aborted = DS_ERR_ABORTED,
    /// A callback asked to stop.
    Callback = DS_ERR_CALLBACK,
    /// A defect of the library: please report the message.
    Internal = DS_ERR_INTERNAL,
    /// Right call, wrong moment: the order of calls, or the object is busy.
    State = DS_ERR_STATE,
    /// A file's content is damaged or hostile.
    Corrupt = DS_ERR_CORRUPT,
    /// A file, tag, tensor or token does not exist.
    NotFound = DS_ERR_NOT_FOUND,
}

impl Status {
    /// The name in `ds.h`, such as `"DS_ERR_IO"`.
    pub fn name(self) -> &'static str {
        // SAFETY: takes any number; the text is static.
        let text = unsafe { CStr::from_ptr(sys::ds_status_name(self.code())) };
        text.to_str().unwrap_or("DS_ERR_UNKNOWN")
    }
}

/// A failed call: what can be done about it, and the library's explanation.
///
/// ```
/// let error = ds::Model::new("{}", 1).unwrap_err();
/// assert_eq!(error.status(), ds::Status::Config);
/// assert!(error.message().contains("model_type"), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    message: String,
}

impl Error {
    /// An error of a caller's own, for callbacks that answer with one, such as those of
    /// [`Store`](crate::Store).
    pub fn new(status: Status, message: impl Into<String>) -> Error {
        Error {
            status,
            message: message.into(),
        }
    }
    /// What can be done about it.
    pub fn status(&self) -> Status {
        self.status
    }
    /// What went wrong, where, and what to do.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(Status::InvalidArgument, message)
    }

    /// The error of the call that has just failed on this thread. To be made before anything else
    /// happens on the thread: tasks of asynchronous programs move between threads at `.await` only,
    /// so a text that is fetched here is that of the call.
    pub(crate) fn last(code: sys::ds_status) -> Error {
        // SAFETY: the text is valid until the next failing call of this thread; it is copied now.
        let text = unsafe { CStr::from_ptr(sys::ds_last_error_message()) };
        Error::new(Status::from_code(code), text.to_string_lossy())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status.name(), self.message)
    }
}

impl std::error::Error for Error {}

/// Turns a call's status into a result; every failing call passes here at once.
pub(crate) fn check(status: sys::ds_status) -> Result<()> {
    if status >= 0 {
        Ok(())
    } else {
        Err(Error::last(status))
    }
}

/// Refuses a library of another version than the header that this crate was made from.
pub(crate) fn check_version() -> Result<()> {
    // SAFETY: takes nothing.
    let loaded = unsafe { sys::ds_abi_version() };
    let (major, minor) = (loaded / 1_000_000, loaded / 1000 % 1000);
    let fits = if sys::DS_VERSION_MAJOR == 0 {
        (major, minor) == (sys::DS_VERSION_MAJOR, sys::DS_VERSION_MINOR)
    } else {
        major == sys::DS_VERSION_MAJOR && minor >= sys::DS_VERSION_MINOR
    };
    if fits {
        return Ok(());
    }
    Err(Error::new(
        Status::Unsupported,
        format!(
            "the loaded libds has version {major}.{minor}, this program was made for {}.{}: install \
             that version, or build the program again",
            sys::DS_VERSION_MAJOR,
            sys::DS_VERSION_MINOR
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_library_s_names() {
        assert_eq!(Status::NotFound.name(), "DS_ERR_NOT_FOUND");
        assert_eq!(Status::from_code(sys::DS_ERR_IO), Status::Io);
        assert_eq!(Status::from_code(-1000), Status::Other(-1000));
        assert_eq!(Status::Other(-1000).name(), "DS_ERR_UNKNOWN");
    }

    #[test]
    fn the_library_fits() {
        check_version().unwrap();
    }
}
