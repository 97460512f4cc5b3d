//! Collectives that go on beside the program.
use std::ffi::CString;
use std::ptr;
use std::time::Duration;

use ds_sys as sys;

use crate::comm::{Comm, ReduceOp};
use crate::error::{check, Error, Result};
use crate::ffi::{c_text, make, pointer, sized, to_i64, Handle};
use crate::tensor::Tensor;

/// One collective for [`Comm::start`]. It takes its tensors over, because their memory is the
/// operation's until it ends, and [`Work::wait`] gives them back.
#[must_use]
pub struct Collective {
    kind: sys::ds_collective_kind,
    op: ReduceOp,
    output: Option<Tensor<'static>>,
    input: Option<Tensor<'static>>,
    root: usize,
    tag: i32,
    output_counts: Option<Vec<i64>>,
    input_counts: Option<Vec<i64>>,
    label: Option<CString>,
    timeout: Option<Duration>,
    average_over_participants: bool,
}

impl Collective {
    fn of(
        kind: sys::ds_collective_kind,
        output: Option<Tensor<'static>>,
        input: Option<Tensor<'static>>,
    ) -> Collective {
        Collective {
            kind,
            op: ReduceOp::Sum,
            output,
            input,
            root: 0,
            tag: 0,
            output_counts: None,
            input_counts: None,
            label: None,
            timeout: None,
            average_over_participants: false,
        }
    }
    fn op(self, op: ReduceOp) -> Collective {
        Collective { op, ..self }
    }
    fn root(self, root: usize) -> Collective {
        Collective { root, ..self }
    }

    /// A tensor combined in place.
    pub fn all_reduce(tensor: Tensor<'static>, op: ReduceOp) -> Collective {
        Collective::of(sys::DS_COLLECTIVE_ALL_REDUCE, Some(tensor), None).op(op)
    }
    /// The same; the result is that of `root` alone.
    pub fn reduce(tensor: Tensor<'static>, op: ReduceOp, root: usize) -> Collective {
        Collective::of(sys::DS_COLLECTIVE_REDUCE, Some(tensor), None)
            .op(op)
            .root(root)
    }
    /// As [`Comm::reduce_scatter`].
    pub fn reduce_scatter(
        output: Tensor<'static>,
        input: Tensor<'static>,
        op: ReduceOp,
    ) -> Collective {
        Collective::of(sys::DS_COLLECTIVE_REDUCE_SCATTER, Some(output), Some(input)).op(op)
    }
    /// As [`Comm::all_gather`]; [`Collective::output_counts`] allow pieces of any size.
    pub fn all_gather(output: Tensor<'static>, input: Tensor<'static>) -> Collective {
        Collective::of(sys::DS_COLLECTIVE_ALL_GATHER, Some(output), Some(input))
    }
    /// As [`Comm::broadcast`].
    pub fn broadcast(tensor: Tensor<'static>, root: usize) -> Collective {
        Collective::of(sys::DS_COLLECTIVE_BROADCAST, Some(tensor), None).root(root)
    }
    /// As [`Comm::all_to_all`]; counts of both sides allow pieces of any size.
    pub fn all_to_all(output: Tensor<'static>, input: Tensor<'static>) -> Collective {
        Collective::of(sys::DS_COLLECTIVE_ALL_TO_ALL, Some(output), Some(input))
    }
    /// Every `input` lands in the `output` of `root`, which others do not have.
    pub fn gather(
        output: Option<Tensor<'static>>,
        input: Tensor<'static>,
        root: usize,
    ) -> Collective {
        Collective::of(sys::DS_COLLECTIVE_GATHER, output, Some(input)).root(root)
    }
    /// Pieces of the `input` of `root`, which others do not have, land in `output`.
    pub fn scatter(
        output: Tensor<'static>,
        input: Option<Tensor<'static>>,
        root: usize,
    ) -> Collective {
        Collective::of(sys::DS_COLLECTIVE_SCATTER, Some(output), input).root(root)
    }
    /// A message to a process; those of one tag arrive in the order of sending.
    pub fn send(input: Tensor<'static>, to: usize, tag: i32) -> Collective {
        let send = Collective::of(sys::DS_COLLECTIVE_SEND, None, Some(input)).root(to);
        Collective { tag, ..send }
    }
    /// A message from a process.
    pub fn receive(output: Tensor<'static>, from: usize, tag: i32) -> Collective {
        let receive = Collective::of(sys::DS_COLLECTIVE_RECV, Some(output), None).root(from);
        Collective { tag, ..receive }
    }
    /// Done when every process has started it.
    pub fn barrier() -> Collective {
        Collective::of(sys::DS_COLLECTIVE_BARRIER, None, None)
    }

    /// Elements that come from each process.
    pub fn output_counts(mut self, counts: &[usize]) -> Collective {
        self.output_counts = Some(counts.iter().map(|&count| to_i64(count)).collect());
        self
    }
    /// Elements that go to each process.
    pub fn input_counts(mut self, counts: &[usize]) -> Collective {
        self.input_counts = Some(counts.iter().map(|&count| to_i64(count)).collect());
        self
    }
    /// What errors name it, such as a tensor's name.
    pub fn label(mut self, label: &str) -> Result<Collective> {
        self.label = Some(c_text("the label", label)?);
        Ok(self)
    }
    /// A deadline of its own.
    pub fn timeout(mut self, timeout: Duration) -> Collective {
        self.timeout = Some(timeout);
        self
    }
    /// Averages divide by the processes that have not joined, not by all.
    pub fn average_over_participants(mut self) -> Collective {
        self.average_over_participants = true;
        self
    }
}

impl Comm {
    /// Starts a collective and returns; it goes on beside the program, after those started before.
    pub fn start(&self, collective: Collective) -> Result<Work> {
        let size = self.info()?.size;
        let counts = |counts: &Option<Vec<i64>>| match counts {
            Some(counts) if counts.len() != size => {
                let n = counts.len();
                Err(Error::invalid(format!(
                    "there are {n} counts for {size} processes"
                )))
            }
            Some(counts) => Ok(counts.as_ptr()),
            None => Ok(ptr::null()),
        };
        let handle = |tensor: &Option<Tensor<'static>>| {
            tensor
                .as_ref()
                .map_or(ptr::null_mut(), |tensor| tensor.raw())
        };
        let timeout = collective
            .timeout
            .map_or(0, |timeout| timeout.as_millis().max(1));
        let raw = sys::ds_collective {
            kind: collective.kind,
            op: collective.op.raw(),
            output: handle(&collective.output),
            input: handle(&collective.input),
            root: i32::try_from(collective.root).unwrap_or(i32::MAX),
            tag: collective.tag,
            output_counts: counts(&collective.output_counts)?,
            input_counts: counts(&collective.input_counts)?,
            label: pointer(&collective.label),
            timeout_ms: i64::try_from(timeout).unwrap_or(i64::MAX),
            average_over_participants: collective.average_over_participants.into(),
            ..sized()
        };
        // SAFETY: counts have an element per process; texts and counts are free after the call; the
        // tensors' memory is the operation's, which counts it, until `Work::wait` gives it back.
        let handle = make(|out| unsafe { sys::ds_comm_start(self.raw(), &raw, out) })?;
        Ok(Work {
            handle,
            output: collective.output,
            input: collective.input,
        })
    }
}

/// A collective under way. Dropping it leaves the operation running, with the memory of its tensors.
#[must_use]
pub struct Work {
    handle: Handle<sys::ds_work>,
    output: Option<Tensor<'static>>,
    input: Option<Tensor<'static>>,
}

// SAFETY: all functions of it may be called from any thread; nobody reaches the tensors inside.
unsafe impl Send for Work {}
// SAFETY: on one handle from many threads at once, too.
unsafe impl Sync for Work {}

/// What a collective leaves.
#[derive(Debug)]
#[non_exhaustive]
pub struct Done {
    /// Processes that took part and had not joined.
    pub participants: usize,
    /// The result.
    pub output: Option<Tensor<'static>>,
    /// What was read.
    pub input: Option<Tensor<'static>>,
}

impl Work {
    /// Whether the operation is over, well or not.
    pub fn test(&self) -> Result<bool> {
        let mut done = 0;
        // SAFETY: writes one number.
        check(unsafe { sys::ds_work_test(self.handle.raw(), &mut done) })?;
        Ok(done != 0)
    }

    /// Waits until the result is in place, and gives the tensors back. An error takes them.
    pub fn wait(self) -> Result<Done> {
        let mut participants = 0;
        // SAFETY: writes one number; after the return the memory is ours again.
        check(unsafe { sys::ds_work_wait(self.handle.raw(), &mut participants) })?;
        let participants = usize::try_from(participants).unwrap_or(0);
        Ok(Done {
            participants,
            output: self.output,
            input: self.input,
        })
    }
}
