//! Train language models from Rust: a safe interface to libds.
//!
//! ```no_run
//! # fn main() -> ds::Result<()> {
//! let shape = r#"{"model_type": "gpt2", "vocab_size": 256, "n_positions": 64,
//!                 "n_embd": 64, "n_layer": 2, "n_head": 4}"#;
//! let config = r#"{"train_micro_batch_size_per_gpu": 8,
//!                  "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}"#;
//! let mut engine = ds::Engine::new(config, ds::Model::new(shape, 1)?)?;
//! engine.set_dataset(Some(&ds::Dataset::text("book.txt", 64, None)?))?;
//! for report in engine.steps(100) {
//!     let report = report?;
//!     println!("step {}  loss {:.4}", report.step, report.loss);
//! }
//! engine.save("out", None)?;
//! # Ok(()) }
//! ```
//!
//! # Memory
//!
//! An [`Engine`] owns its [`Model`] and lends it out between steps. Calls that change weights take the
//! engine by `&mut`, views of memory borrow it: a program that compiles does not read weights while
//! they are written. Everything else is copied, or counted by the library, so objects may be dropped
//! in any order, on any thread; dropping waits for nobody.
//!
//! # Threads
//!
//! | | `Send` | `Sync` |
//! | --- | --- | --- |
//! | [`Tokenizer`], [`Dataset`], [`Tensor`], [`Work`], [`FileIo`] | yes | yes |
//! | [`Interrupter`], [`GeneratorInterrupter`], [`Aborter`] | yes | yes |
//! | [`Engine`], [`Model`], [`Generator`], [`Comm`] | yes | no: one thread at a time |
//! | [`Scope`], [`Edit`], [`Optimizer`] | no: they stay with their engine | no |
//!
//! Two engines train at once on two threads.
//!
//! # Errors
//!
//! Every call that can fail gives a [`Result`]; an [`Error`] has a [`Status`] to decide by and a
//! message to read, which is fetched within the call and so right in asynchronous programs too. A
//! panic of a closure that the library calls goes on when the call has returned.
#![deny(missing_docs)]

mod batch;
pub mod checkpoint;
mod comm;
pub mod config;
mod dataset;
mod element;
mod engine;
mod error;
pub mod experts;
mod ffi;
mod generate_batch;
mod generator;
mod io;
pub mod json;
pub mod log;
pub mod memory;
mod model;
mod panics;
mod parameter;
mod run;
mod scope;
mod store;
mod tensor;
mod tokenizer;
mod work;

pub use batch::Batch;
pub use comm::{Aborter, Comm, CommInfo, ReduceOp};
pub use dataset::Dataset;
pub use element::{Bf16, Bool, DType, Element, F16};
pub use engine::{BadGradient, Engine, EngineBuilder, EngineInfo, Skip, StepReport, Steps, Views};
pub use error::{Error, Result, Status};
pub use generate_batch::TextReply;
pub use generator::{
    GenerateOptions, Generator, GeneratorInfo, GeneratorInterrupter, Tokens, WeightForm,
};
pub use io::{FileIo, FileIoInfo, IoBackend, IoOptions, Place, Transfer};
pub use model::{Model, ModelInfo, ParameterInfo, Rejected};
pub use parameter::Parameter;
pub use run::{Interrupter, Progress};
pub use scope::{Edit, Extent, Optimizer, OptimizerInfo, Scope, Values};
pub use store::{MemoryStore, Store};
pub use tensor::{
    Device, DeviceKind, GroupFormat, Quantized, QuantizedGroups, Tensor, TensorInfo, TensorRef,
};
pub use tokenizer::Tokenizer;
pub use work::{Collective, Done, Work};

/// The declarations of the C interface, for what this crate leaves out.
pub use ds_sys as sys;

/// Version of the loaded library, such as `"0.5.0"`.
pub fn version() -> &'static str {
    // SAFETY: the text is static.
    let text = unsafe { std::ffi::CStr::from_ptr(sys::ds_version()) };
    text.to_str().unwrap_or("")
}

/// The build and the machine as JSON: options, CPU features, devices, and what is not usable and why.
pub fn report() -> Result<String> {
    // SAFETY: gives a text.
    ffi::text(|out| unsafe { sys::ds_report(out) })
}

/// What the table of threads above says, checked when the crate is compiled.
#[allow(dead_code)]
mod promises {
    use super::*;

    fn send<T: Send>() {}
    fn sync<T: Sync>() {}

    fn are_kept() {
        send::<Engine>();
        send::<Model>();
        send::<Generator<'_>>();
        send::<Comm>();
        send::<Tensor<'_>>();
        sync::<Tensor<'_>>();
        send::<FileIo>();
        sync::<FileIo>();
        send::<TensorRef<'_>>();
        sync::<TensorRef<'_>>();
        send::<Tokenizer>();
        sync::<Tokenizer>();
        send::<Dataset>();
        sync::<Dataset>();
        send::<Work>();
        sync::<Work>();
        send::<Interrupter>();
        sync::<Interrupter>();
        send::<GeneratorInterrupter>();
        sync::<GeneratorInterrupter>();
        send::<Aborter>();
        sync::<Aborter>();
        send::<Error>();
        sync::<Error>();
    }

    /// Fails to compile for a type that is both Send (or Sync) and listed as not being so: two
    /// implementations then fit and `AMBIGUOUS` cannot be chosen.
    macro_rules! is_not {
        ($trait:ident: $($type:ty),*) => {
            const _: () = {
                struct Yes;
                trait Ambiguous<A> { const AMBIGUOUS: () = (); }
                impl<T: ?Sized> Ambiguous<()> for T {}
                impl<T: ?Sized + $trait> Ambiguous<Yes> for T {}
                $(let () = <$type as Ambiguous<_>>::AMBIGUOUS;)*
            };
        };
    }
    is_not!(Sync: Engine, Model, Generator<'static>, Comm);
    is_not!(Sync: Scope<'static>, Edit<'static>, Optimizer<'static>);
    is_not!(Send: Scope<'static>, Edit<'static>, Optimizer<'static>);
}
