//! Groups of processes and their collectives.
use std::ptr;

use ds_sys as sys;

use crate::element::{DType, Element};
use crate::error::{check, Error, Result};
use crate::ffi::{c_enum, c_option, describe, make, pointer, text, to_i64, Handle, Number};
use crate::store::{Calls, Store};
use crate::tensor::{dims, raw_list, raw_list_mut, Tensor};

c_enum! {
    /// How numbers of several processes become one.
    ReduceOp {
        /// Their sum.
        Sum = DS_REDUCE_SUM,
        /// Their mean.
        Average = DS_REDUCE_AVERAGE,
        /// The smallest.
        Min = DS_REDUCE_MIN,
        /// The largest.
        Max = DS_REDUCE_MAX,
    }
}

/// What a process is in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommInfo {
    /// This process, in `0..size`.
    pub rank: usize,
    /// Processes of the group.
    pub size: usize,
    /// This process among those of its host.
    pub local_rank: usize,
    /// Processes on its host.
    pub local_size: usize,
    /// Its host, in `0..nodes`.
    pub node: usize,
    /// Hosts.
    pub nodes: usize,
}

/// A group of processes, or of threads that act as such.
///
/// Collectives are called by every process of the group in the same order, with tensors of the same
/// type, packed, in host memory; they wait until the result is there.
///
/// ```
/// use ds::{Comm, MemoryStore, ReduceOp, Tensor};
/// let store = MemoryStore::new(std::time::Duration::from_secs(30));
/// std::thread::scope(|scope| {
///     let ranks: Vec<_> = (0..2).map(|rank| scope.spawn({
///         let store = &store;
///         move || -> ds::Result<f64> {
///             let comm = Comm::with_store(rank, 2, None, store)?;
///             let mut sum = Tensor::from_vec(vec![rank as f32 + 1.0], &[1])?;
///             comm.all_reduce(&mut sum, ReduceOp::Sum)?;
///             comm.finalize()?;
///             sum.item()
///         }
///     })).collect();
///     for rank in ranks {
///         assert_eq!(rank.join().unwrap(), Ok(3.0));
///     }
/// });
/// ```
pub struct Comm {
    handle: Handle<sys::ds_comm>,
}

// SAFETY: a handle may be used from any thread, one at a time. It is not Sync: a second thread's
// call would be refused, and the order of collectives would be anybody's guess.
unsafe impl Send for Comm {}

/// A rank or a count for the library, which refuses what is too large.
fn number(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

impl Comm {
    pub(crate) fn raw(&self) -> *mut sys::ds_comm {
        self.handle.raw()
    }

    fn create(
        rank: i32,
        size: i32,
        config: Option<&str>,
        store: Option<&dyn Store>,
    ) -> Result<Comm> {
        let config = c_option("the configuration", config)?;
        let calls = store.map(Calls::of);
        let raw = calls.as_ref().map(Calls::raw);
        let store = raw.as_ref().map_or(ptr::null(), |store| store as *const _);
        // SAFETY: the text and the store are used during the call alone.
        let made =
            make(|out| unsafe { sys::ds_comm_create(rank, size, pointer(&config), store, out) });
        if let Some(calls) = calls {
            calls.panic.resume();
            if let (Err(_), Some(failure)) = (&made, calls.failure()) {
                return Err(failure);
            }
        }
        Ok(Comm { handle: made? })
    }

    /// Joins the group that the launcher (`ds launch`, `torchrun`, `mpirun`, `srun`) put into the
    /// environment; alone without one. `config` are options of the communication page.
    pub fn from_environment(config: Option<&str>) -> Result<Comm> {
        Comm::create(-1, -1, config, None)
    }

    /// Joins a group that meets at a port of rank 0.
    pub fn new(rank: usize, size: usize, config: Option<&str>) -> Result<Comm> {
        Comm::create(number(rank), number(size), config, None)
    }

    /// Joins a group that meets in a store of the program. It is used during this call alone.
    pub fn with_store(
        rank: usize,
        size: usize,
        config: Option<&str>,
        store: &dyn Store,
    ) -> Result<Comm> {
        Comm::create(number(rank), number(size), config, Some(store))
    }

    /// Ranks and sizes.
    pub fn info(&self) -> Result<CommInfo> {
        // SAFETY: fills the struct.
        let info: sys::ds_comm_info =
            describe(|out| unsafe { sys::ds_comm_describe(self.raw(), out) })?;
        let count = |value: i32| usize::try_from(value).unwrap_or(0);
        Ok(CommInfo {
            rank: count(info.rank),
            size: count(info.size),
            local_rank: count(info.local_rank),
            local_size: count(info.local_size),
            node: count(info.node),
            nodes: count(info.nodes),
        })
    }

    /// Combines a tensor in place.
    pub fn all_reduce(&self, tensor: &mut Tensor<'_>, op: ReduceOp) -> Result<()> {
        // SAFETY: the tensor is borrowed exclusively until the result is there.
        check(unsafe { sys::ds_comm_all_reduce(self.raw(), tensor.raw(), op.raw()) })
    }

    /// `input` is one piece per process; the combined piece of this one lands in `output`.
    pub fn reduce_scatter(
        &self,
        output: &mut Tensor<'_>,
        input: &Tensor<'_>,
        op: ReduceOp,
    ) -> Result<()> {
        // SAFETY: as above; `input` is read.
        check(unsafe {
            sys::ds_comm_reduce_scatter(self.raw(), output.raw(), input.raw(), op.raw())
        })
    }

    /// The `input` of every process, in rank order, lands in `output`.
    pub fn all_gather(&self, output: &mut Tensor<'_>, input: &Tensor<'_>) -> Result<()> {
        // SAFETY: as above.
        check(unsafe { sys::ds_comm_all_gather(self.raw(), output.raw(), input.raw()) })
    }

    /// Piece j of the `input` of process i lands in piece i of the `output` of process j.
    pub fn all_to_all(&self, output: &mut Tensor<'_>, input: &Tensor<'_>) -> Result<()> {
        // SAFETY: as above.
        check(unsafe { sys::ds_comm_all_to_all(self.raw(), output.raw(), input.raw()) })
    }

    /// The tensor of process `root` lands in that of every process.
    pub fn broadcast(&self, tensor: &mut Tensor<'_>, root: usize) -> Result<()> {
        // SAFETY: as above.
        check(unsafe { sys::ds_comm_broadcast(self.raw(), tensor.raw(), number(root)) })
    }

    /// [`Comm::all_reduce`] of many tensors with one collective.
    pub fn all_reduce_coalesced(&self, tensors: &mut [Tensor<'_>], op: ReduceOp) -> Result<()> {
        let list = raw_list_mut(tensors);
        let count = to_i64(list.len());
        // SAFETY: as above; `list` has `count` handles.
        check(unsafe {
            sys::ds_comm_all_reduce_coalesced(self.raw(), list.as_ptr(), count, op.raw())
        })
    }

    /// [`Comm::reduce_scatter`] of many tensors with one collective.
    pub fn reduce_scatter_coalesced<'t, R: AsRef<Tensor<'t>>>(
        &self,
        outputs: &mut [Tensor<'_>],
        inputs: &[R],
        op: ReduceOp,
    ) -> Result<()> {
        let (outputs, inputs) = pairs(outputs, inputs)?;
        let (to, from, count) = (outputs.as_ptr(), inputs.as_ptr(), to_i64(inputs.len()));
        // SAFETY: as above; both lists have `count` handles.
        check(unsafe {
            sys::ds_comm_reduce_scatter_coalesced(self.raw(), to, from, count, op.raw())
        })
    }

    /// [`Comm::all_gather`] of many tensors with one collective.
    pub fn all_gather_coalesced<'t, R: AsRef<Tensor<'t>>>(
        &self,
        outputs: &mut [Tensor<'_>],
        inputs: &[R],
    ) -> Result<()> {
        let (outputs, inputs) = pairs(outputs, inputs)?;
        let (to, from, count) = (outputs.as_ptr(), inputs.as_ptr(), to_i64(inputs.len()));
        // SAFETY: as above; both lists have `count` handles.
        check(unsafe { sys::ds_comm_all_gather_coalesced(self.raw(), to, from, count) })
    }

    /// Processes that give the same color form a new group, ordered by key; those that give none get
    /// none.
    pub fn split(&self, color: Option<usize>, key: i32) -> Result<Option<Comm>> {
        let mut out = ptr::null_mut();
        let color = color.map_or(-1, number);
        // SAFETY: gives a handle or NULL.
        check(unsafe { sys::ds_comm_split(self.raw(), color, key, &mut out) })?;
        if out.is_null() {
            return Ok(None);
        }
        Ok(Some(Comm {
            handle: Handle::own(out)?,
        }))
    }

    /// For a process that runs out of work before others: answers the collectives that they still
    /// call, with zeros to sums, until every process has called it.
    pub fn join(&self) -> Result<()> {
        // SAFETY: takes the handle alone.
        check(unsafe { sys::ds_comm_join(self.raw()) })
    }

    /// Zeros whose memory the processes of a host share for collectives without a copy. Each process
    /// has its own tensor.
    pub fn shared_tensor<T: Element>(&self, shape: &[usize]) -> Result<Tensor<'static>> {
        self.shared_tensor_of(T::DTYPE, shape)
    }

    /// The same of a type that is known at run time only.
    pub fn shared_tensor_of(&self, dtype: DType, shape: &[usize]) -> Result<Tensor<'static>> {
        let (sizes, count) = dims(shape)?;
        // SAFETY: `sizes` has `count` elements.
        let handle = make(|out| unsafe {
            sys::ds_comm_shared_tensor(self.raw(), dtype.raw(), sizes.as_ptr(), count, out)
        })?;
        Ok(Tensor::of(handle))
    }

    /// What the group is and what it has sent, as JSON.
    pub fn report(&self) -> Result<String> {
        // SAFETY: gives a text.
        text(|out| unsafe { sys::ds_comm_report(self.raw(), out) })
    }

    /// Waits until every process has called it.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: takes the handle alone.
        check(unsafe { sys::ds_comm_barrier(self.raw()) })
    }

    /// Ends the group together. Dropping it instead waits for nobody.
    pub fn finalize(self) -> Result<()> {
        // SAFETY: takes the handle alone.
        check(unsafe { sys::ds_comm_finalize(self.raw()) })
    }

    /// Makes every pending and later operation of the group fail, here and elsewhere.
    pub fn abort(&self) -> Result<()> {
        // SAFETY: takes the handle alone.
        check(unsafe { sys::ds_comm_abort(self.raw()) })
    }

    /// What does the same from another thread, while this one waits.
    pub fn aborter(&self) -> Aborter {
        Aborter(Number::of(self.raw()))
    }
}

type Handles = Vec<*mut sys::ds_tensor>;

/// The handles of outputs and inputs, which are as many.
fn pairs<'t, R: AsRef<Tensor<'t>>>(
    outputs: &mut [Tensor<'_>],
    inputs: &[R],
) -> Result<(Handles, Handles)> {
    if outputs.len() != inputs.len() {
        let (n, m) = (outputs.len(), inputs.len());
        return Err(Error::invalid(format!(
            "there are {n} outputs and {m} inputs"
        )));
    }
    Ok((raw_list_mut(outputs), raw_list(inputs)))
}

/// Aborts a group from any thread.
#[derive(Clone)]
pub struct Aborter(Number<sys::ds_comm>);

impl Aborter {
    /// Makes every pending and later operation of the group fail; when it is gone, nothing happens.
    pub fn abort(&self) {
        // SAFETY: any number is fine; one of a group that has ended is refused.
        unsafe { sys::ds_comm_abort(self.0.raw()) };
    }
}

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.info() {
            Ok(info) => write!(f, "Comm(rank {} of {})", info.rank, info.size),
            Err(error) => write!(f, "Comm({error})"),
        }
    }
}
