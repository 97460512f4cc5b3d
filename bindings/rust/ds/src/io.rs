//! Files read and written beside the program.
use std::ffi::CString;
use std::fs::File;
use std::os::unix::io::AsRawFd;
use std::path::Path;

use ds_sys as sys;

use crate::error::{check, Result};
use crate::ffi::{
    c_enum, c_path, c_text, describe, make, pointer, sized, to_i64, to_usize, Handle,
};
use crate::tensor::Tensor;

c_enum! {
    /// What carries reads and writes of files out.
    IoBackend {
        /// io_uring.
        Uring = DS_IO_URING,
        /// The kernel's older asynchronous I/O, through libaio.
        Libaio = DS_IO_LIBAIO,
        /// Threads that read and write with ordinary calls.
        Threads = DS_IO_THREADS,
    }
}

/// How files are read and written: keys of the configuration's `aio`; `None` is the default.
#[derive(Clone, Debug, Default)]
pub struct IoOptions {
    /// Bytes of a request to the system.
    pub block_size: Option<usize>,
    /// Requests under way, of each thread.
    pub queue_depth: Option<usize>,
    /// Threads that share each read, and as many for each write.
    pub intra_op_parallelism: Option<usize>,
    /// A system call for each request.
    pub single_submit: Option<bool>,
    /// A request that ends makes room for the next.
    pub overlap_events: Option<bool>,
    /// What carries requests out; the best that works here where none is named.
    pub backend: Option<IoBackend>,
    /// What was moved is compared with what the file holds.
    pub validate: bool,
    /// What is read is checked by what was written through the same object.
    pub checksum: bool,
}

impl IoOptions {
    fn json(&self) -> String {
        let mut keys = Vec::new();
        let mut add = |key: &str, value: Option<String>| {
            keys.extend(value.map(|value| format!("\"{key}\": {value}")));
        };
        let number = |value: Option<usize>| value.map(|value| value.to_string());
        let flag = |value: Option<bool>| value.map(|value| value.to_string());
        add("block_size", number(self.block_size));
        add("queue_depth", number(self.queue_depth));
        add("intra_op_parallelism", number(self.intra_op_parallelism));
        add("single_submit", flag(self.single_submit));
        add("overlap_events", flag(self.overlap_events));
        let name = |backend| match backend {
            IoBackend::Uring => "\"io_uring\"",
            IoBackend::Libaio => "\"libaio\"",
            IoBackend::Threads => "\"threads\"",
            IoBackend::Unknown => "\"unknown\"",
        };
        add("backend", self.backend.map(|b| name(b).to_string()));
        add("validate", flag(Some(self.validate)));
        add("checksum", flag(Some(self.checksum)));
        format!("{{{}}}", keys.join(", "))
    }
}

/// A file by its path, or one that is open.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// By its path.
    Path(&'a Path),
    /// Open for what is done, not for appending.
    File(&'a File),
}

impl<'a> From<&'a Path> for Place<'a> {
    fn from(path: &'a Path) -> Place<'a> {
        Place::Path(path)
    }
}
impl<'a> From<&'a str> for Place<'a> {
    fn from(path: &'a str) -> Place<'a> {
        Place::Path(Path::new(path))
    }
}
impl<'a> From<&'a File> for Place<'a> {
    fn from(file: &'a File) -> Place<'a> {
        Place::File(file)
    }
}

/// What a [`FileIo`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileIoInfo {
    /// Bytes of a request to the system, as it was given.
    pub block_size: usize,
    /// What offset, length and address should be multiples of.
    pub alignment: usize,
    /// Requests under way, of each thread.
    pub queue_depth: usize,
    /// Threads of each direction.
    pub intra_op_parallelism: usize,
    /// A system call for each request.
    pub single_submit: bool,
    /// A request that ends makes room for the next.
    pub overlap_events: bool,
    /// What was moved is compared with what the file holds.
    pub validate: bool,
    /// What is read is checked by what was written.
    pub checksum: bool,
    /// What was chosen.
    pub backend: IoBackend,
}

/// Reads and writes of files that go on beside the program, past the page cache where the file
/// system allows that. Reads and writes have threads and queues of their own.
///
/// ```
/// use ds::{FileIo, IoOptions, Tensor};
/// let folder = std::env::temp_dir().join(format!("ds-io-doc-{}", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// let path = folder.join("numbers");
/// let io = FileIo::new(&IoOptions::default())?;
/// io.write_file(path.as_path(), &Tensor::from_vec(vec![1.0f32, 2.0, 3.0], &[3])?)?;
/// let read = io.start_read(path.as_path(), 4, Tensor::zeros::<f32>(&[2])?)?;
/// assert_eq!(read.wait()?.as_slice::<f32>()?, [2.0, 3.0]);
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FileIo {
    handle: Handle<sys::ds_io>,
}

// SAFETY: all functions of it may be called from any thread.
unsafe impl Send for FileIo {}
// SAFETY: on one handle from many threads at once, too.
unsafe impl Sync for FileIo {}

impl FileIo {
    /// With these options.
    pub fn new(options: &IoOptions) -> Result<FileIo> {
        let json = c_text("the options", options.json())?;
        // SAFETY: reads a text, gives a handle.
        let handle = make(|out| unsafe { sys::ds_io_create(json.as_ptr(), out) })?;
        Ok(FileIo { handle })
    }

    /// The options, and what was chosen.
    pub fn info(&self) -> Result<FileIoInfo> {
        // SAFETY: fills a struct.
        let info: sys::ds_io_info =
            describe(|out| unsafe { sys::ds_io_describe(self.handle.raw(), out) })?;
        Ok(FileIoInfo {
            block_size: to_usize(info.block_size),
            alignment: to_usize(info.alignment),
            queue_depth: to_usize(info.queue_depth.into()),
            intra_op_parallelism: to_usize(info.intra_op_parallelism.into()),
            single_submit: info.single_submit != 0,
            overlap_events: info.overlap_events != 0,
            validate: info.validate != 0,
            checksum: info.checksum != 0,
            backend: IoBackend::from_raw(info.backend),
        })
    }

    fn run(
        &self,
        place: Place<'_>,
        tensor: &Tensor<'_>,
        change: impl FnOnce(&mut sys::ds_io_transfer),
    ) -> Result<()> {
        let path = path_of(place)?;
        let mut transfer = transfer_of(place, &path, tensor);
        change(&mut transfer);
        // SAFETY: path and tensor live through the call, which is done with them on return.
        check(unsafe { sys::ds_io_run(self.handle.raw(), &transfer) })
    }

    /// Fills a tensor from an offset of a file on.
    pub fn read<'a>(
        &self,
        place: impl Into<Place<'a>>,
        offset: usize,
        into: &mut Tensor<'_>,
    ) -> Result<()> {
        self.run(place.into(), into, |t| t.offset = to_i64(offset))
    }

    /// Writes a tensor at an offset of a file, which is made where there is none.
    pub fn write<'a>(
        &self,
        place: impl Into<Place<'a>>,
        offset: usize,
        from: &Tensor<'_>,
    ) -> Result<()> {
        self.run(place.into(), from, |t| {
            t.offset = to_i64(offset);
            t.write = 1;
        })
    }

    /// Fills a tensor that has the size of a whole file.
    pub fn read_file<'a>(&self, place: impl Into<Place<'a>>, into: &mut Tensor<'_>) -> Result<()> {
        self.run(place.into(), into, |t| t.whole_file = 1)
    }

    /// Makes a file of a tensor, and of nothing else.
    pub fn write_file<'a>(&self, place: impl Into<Place<'a>>, from: &Tensor<'_>) -> Result<()> {
        self.run(place.into(), from, |t| {
            t.whole_file = 1;
            t.write = 1;
        })
    }

    fn start(
        &self,
        place: Place<'_>,
        offset: usize,
        tensor: Tensor<'static>,
        write: bool,
    ) -> Result<Transfer<'_>> {
        let path = path_of(place)?;
        let mut transfer = transfer_of(place, &path, &tensor);
        transfer.offset = to_i64(offset);
        transfer.write = write.into();
        let mut ticket = 0;
        // SAFETY: path and descriptor are free after the call; the library keeps the tensor's memory,
        // and nobody reaches the tensor before `Transfer::wait` gives it back.
        check(unsafe { sys::ds_io_start(self.handle.raw(), &transfer, &mut ticket) })?;
        Ok(Transfer {
            io: self,
            ticket,
            tensor,
        })
    }

    /// Starts [`FileIo::read`]. The tensor comes back from [`Transfer::wait`].
    pub fn start_read<'a>(
        &self,
        place: impl Into<Place<'a>>,
        offset: usize,
        into: Tensor<'static>,
    ) -> Result<Transfer<'_>> {
        self.start(place.into(), offset, into, false)
    }

    /// Starts [`FileIo::write`]. The tensor comes back from [`Transfer::wait`].
    pub fn start_write<'a>(
        &self,
        place: impl Into<Place<'a>>,
        offset: usize,
        from: Tensor<'static>,
    ) -> Result<Transfer<'_>> {
        self.start(place.into(), offset, from, true)
    }

    /// Waits for all that was started and that nobody has waited for; how many those were. The first
    /// failure is the error, and then not that of its [`Transfer::wait`].
    pub fn wait_all(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: writes one number.
        check(unsafe { sys::ds_io_wait(self.handle.raw(), 0, &mut count) })?;
        Ok(to_usize(count))
    }

    /// Gives up what was started and has not ended; how many those were. Waiting for it fails.
    pub fn cancel(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: writes one number.
        check(unsafe { sys::ds_io_cancel(self.handle.raw(), &mut count) })?;
        Ok(to_usize(count))
    }
}

fn path_of(place: Place<'_>) -> Result<Option<CString>> {
    match place {
        Place::Path(path) => c_path(path).map(Some),
        Place::File(_) => Ok(None),
    }
}

fn transfer_of(
    place: Place<'_>,
    path: &Option<CString>,
    tensor: &Tensor<'_>,
) -> sys::ds_io_transfer {
    sys::ds_io_transfer {
        path: pointer(path),
        descriptor: match place {
            Place::File(file) => file.as_raw_fd(),
            Place::Path(_) => 0,
        },
        tensor: tensor.raw(),
        ..sized()
    }
}

/// A read or write under way. Dropping it leaves it running, with the memory of its tensor.
#[must_use]
pub struct Transfer<'io> {
    io: &'io FileIo,
    ticket: i64,
    tensor: Tensor<'static>,
}

impl Transfer<'_> {
    /// Whether it has ended, well or not.
    pub fn test(&self) -> Result<bool> {
        let mut done = 0;
        // SAFETY: writes one number.
        check(unsafe { sys::ds_io_test(self.io.handle.raw(), self.ticket, &mut done) })?;
        Ok(done != 0)
    }

    /// Waits until it is done, and gives the tensor back. An error takes it.
    pub fn wait(self) -> Result<Tensor<'static>> {
        let mut count = 0;
        // SAFETY: writes one number; after the return the memory is ours again.
        check(unsafe { sys::ds_io_wait(self.io.handle.raw(), self.ticket, &mut count) })?;
        Ok(self.tensor)
    }
}
