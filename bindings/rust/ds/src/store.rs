//! Where the processes of a group find each other, when the program provides it.
use std::collections::HashMap;
use std::ffi::CStr;
use std::os::raw::{c_char, c_void};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ds_sys as sys;

use crate::error::{Error, Result, Status};
use crate::ffi::sized;
use crate::panics::PanicSlot;

/// A key-value store that the program provides for [`Comm::with_store`](crate::Comm::with_store): a
/// database, a file system, a server of its own.
pub trait Store: Sync {
    /// Stores a value.
    fn put(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Waits for a value. When it does not come in time, the store's own to decide, the answer is an
    /// error of [`Status::NotFound`].
    fn get(&self, key: &str) -> Result<Vec<u8>>;
}

/// A store in this process's memory, for groups whose ranks are threads.
pub struct MemoryStore {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
    timeout: Duration,
}

impl MemoryStore {
    /// A store that waits so long for a value.
    pub fn new(timeout: Duration) -> MemoryStore {
        MemoryStore {
            values: Mutex::default(),
            changed: Condvar::new(),
            timeout,
        }
    }
}

impl Store for MemoryStore {
    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.insert(key.to_string(), value.to_vec());
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        let end = Instant::now() + self.timeout;
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(value) = values.get(key) {
                return Ok(value.clone());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(Status::NotFound, format!("nobody put {key}")));
            }
            values = match self.changed.wait_timeout(values, left) {
                Ok((values, _)) => values,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// A store while a call uses it: what it answered with an error, and its panics.
pub(crate) struct Calls<'s> {
    store: &'s dyn Store,
    pub(crate) panic: PanicSlot,
    failure: Mutex<Option<Error>>,
}

impl<'s> Calls<'s> {
    pub(crate) fn of(store: &'s dyn Store) -> Calls<'s> {
        Calls {
            store,
            panic: PanicSlot::default(),
            failure: Mutex::default(),
        }
    }

    /// The struct that the call takes; it points to `self`.
    pub(crate) fn raw(&self) -> sys::ds_store {
        sys::ds_store {
            user_data: (self as *const Calls<'s>) as *mut c_void,
            put: Some(put),
            get: Some(get),
            ..sized()
        }
    }

    /// What went wrong in the store, which says more than the call that it ended.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// The number that answers for a result. A value that did not come is no failure of the store:
    /// the library says who is missing.
    fn answer(&self, result: Option<Result<()>>) -> sys::ds_status {
        let error = match result {
            Some(Ok(())) => return sys::DS_OK,
            Some(Err(error)) => error,
            None => return sys::DS_ERR_CALLBACK, // a panic, which goes on after the call
        };
        let code = error.status().code();
        if error.status() != Status::NotFound {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
        code.min(-1)
    }
}

unsafe extern "C" fn put(
    user_data: *mut c_void,
    key: *const c_char,
    value: *const c_void,
    size: i64,
) -> sys::ds_status {
    // SAFETY: it is that of `Calls::raw`, and the call it was made for runs.
    let calls = &*(user_data as *const Calls<'_>);
    let key = CStr::from_ptr(key).to_string_lossy();
    let value: &[u8] = match usize::try_from(size) {
        Ok(size) if size > 0 => std::slice::from_raw_parts(value.cast(), size),
        _ => &[],
    };
    calls.answer(calls.panic.run(|| calls.store.put(&key, value)))
}

unsafe extern "C" fn get(
    user_data: *mut c_void,
    key: *const c_char,
    value: *mut c_void,
    capacity: i64,
    out_size: *mut i64,
) -> sys::ds_status {
    // SAFETY: as in `put`; there is room for `capacity` bytes.
    let calls = &*(user_data as *const Calls<'_>);
    let key = CStr::from_ptr(key).to_string_lossy();
    calls.answer(calls.panic.run(|| {
        let found = calls.store.get(&key)?;
        let size = i64::try_from(found.len()).unwrap_or(i64::MAX);
        if size > capacity {
            let text =
                format!("the value of {key} has {size} bytes; at most {capacity} are possible");
            return Err(Error::new(Status::InvalidArgument, text));
        }
        std::ptr::copy_nonoverlapping(found.as_ptr(), value.cast(), found.len());
        *out_size = size;
        Ok(())
    }))
}
