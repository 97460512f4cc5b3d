//! What the process holds, and where it gets memory from.
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

use ds_sys as sys;

use crate::error::{check, Result};
use crate::ffi::{sized, text};
use crate::tensor::DeviceKind;

/// What this process holds, by what it serves and by device, as JSON.
pub fn report() -> Result<String> {
    // SAFETY: gives a text.
    text(|out| unsafe { sys::ds_memory_report(out) })
}

/// Where the library gets the memory of a device from ([`set_allocator`]). Its functions are called
/// on any thread, possibly several at once, and must not call this crate.
///
/// # Safety
/// `allocate` gives memory of the device, of so many bytes, aligned so, that nobody else uses until
/// `deallocate` has taken it back; or null.
pub unsafe trait Allocator: Send + Sync + 'static {
    /// Memory of so many bytes, aligned to a power of two; null when there is none.
    fn allocate(&self, bytes: usize, alignment: usize, device_index: usize) -> *mut u8;

    /// Takes it back.
    ///
    /// # Safety
    /// `memory` came from `allocate` with as many bytes for the same device.
    unsafe fn deallocate(&self, memory: *mut u8, bytes: usize, device_index: usize);
}

unsafe extern "C" fn allocate<A: Allocator>(
    user_data: *mut c_void,
    bytes: i64,
    alignment: i64,
    device: i32,
) -> *mut c_void {
    // SAFETY: it is that of `set_allocator`, shared by threads.
    let allocator = &*(user_data as *const A);
    let count = |value: i64| usize::try_from(value).unwrap_or(0);
    let (bytes, alignment, device) = (count(bytes), count(alignment), count(device.into()));
    // A panic is memory that is not there.
    catch_unwind(AssertUnwindSafe(|| {
        allocator.allocate(bytes, alignment, device)
    }))
    .unwrap_or(ptr::null_mut())
    .cast()
}

unsafe extern "C" fn deallocate<A: Allocator>(
    user_data: *mut c_void,
    memory: *mut c_void,
    bytes: i64,
    device: i32,
) {
    // SAFETY: as above; the library gives back what it took.
    let allocator = &*(user_data as *const A);
    let count = |value: i64| usize::try_from(value).unwrap_or(0);
    let _ = catch_unwind(AssertUnwindSafe(|| {
        allocator.deallocate(memory.cast(), count(bytes), count(device.into()));
    }));
}

unsafe extern "C" fn release<A>(user_data: *mut c_void) {
    let allocator = Box::from_raw(user_data.cast::<A>());
    let _ = catch_unwind(AssertUnwindSafe(|| drop(allocator)));
}

/// Takes the memory of tensors, models and engines of one kind of device from the program from now
/// on. The allocator is dropped when another one is set and no memory of it is held any more.
/// Experimental: it may change in any version.
pub fn set_allocator<A: Allocator>(device: DeviceKind, allocator: A) -> Result<()> {
    let owner = Box::into_raw(Box::new(allocator));
    let raw = sys::ds_allocator {
        user_data: owner.cast(),
        allocate: Some(allocate::<A>),
        deallocate: Some(deallocate::<A>),
        ..sized()
    };
    // SAFETY: the allocator lives until `release`.
    let done = check(unsafe { sys::ds_allocator_set(device.raw(), &raw, Some(release::<A>)) });
    if done.is_err() {
        // SAFETY: a call that fails leaves it with us.
        drop(unsafe { Box::from_raw(owner) });
    }
    done
}

/// Memory comes from the system again.
pub fn reset_allocator(device: DeviceKind) -> Result<()> {
    // SAFETY: NULL is the system.
    check(unsafe { sys::ds_allocator_set(device.raw(), ptr::null(), None) })
}
