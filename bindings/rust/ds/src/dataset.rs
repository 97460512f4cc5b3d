//! Samples of token ids.
use std::path::Path;
use std::ptr;

use ds_sys as sys;

use crate::error::{check, Result};
use crate::ffi::{c_path, c_text, describe, make, to_i64, to_usize, Handle};
use crate::json::{object, Value};
use crate::tensor::Tensor;
use crate::tokenizer::Tokenizer;

/// Samples to train on or to evaluate with. Immutable: threads may share one.
pub struct Dataset {
    handle: Handle<sys::ds_dataset>,
}

// SAFETY: all functions of a data set may be called from any thread.
unsafe impl Send for Dataset {}
// SAFETY: on one handle from many threads at once, too.
unsafe impl Sync for Dataset {}

impl Dataset {
    pub(crate) fn raw(&self) -> *mut sys::ds_dataset {
        self.handle.raw()
    }

    /// Opens samples as a specification says, such as
    /// `{"path": "book.txt", "sequence_length": 64, "seed": 1}`; the data page of the documentation
    /// has its keys. Without a tokenizer text is read as bytes.
    pub fn open(spec: &str, tokenizer: Option<&Tokenizer>) -> Result<Dataset> {
        let spec = c_text("the specification", spec)?;
        let tokenizer = tokenizer.map_or(ptr::null(), |tokenizer| tokenizer.raw() as *const _);
        // SAFETY: reads the text; the data set keeps what it needs of the tokenizer.
        let handle = make(|out| unsafe { sys::ds_dataset_open(spec.as_ptr(), tokenizer, out) })?;
        Ok(Dataset { handle })
    }

    /// Running tokens of a text file, or of a `.jsonl` file whose lines have `"text"`, in samples of
    /// `sequence_length`.
    pub fn text(
        path: impl AsRef<Path>,
        sequence_length: usize,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Dataset> {
        let path = path.as_ref().to_string_lossy().into_owned();
        let length = Value::from(to_i64(sequence_length));
        let spec = object([("path", path.into()), ("sequence_length", length)]);
        Dataset::open(&spec.to_string(), tokenizer)
    }

    /// Tokenises a text or `.jsonl` file into `PREFIX.bin` and `PREFIX.idx`, Megatron's format.
    pub fn build(
        input: impl AsRef<Path>,
        tokenizer: &Tokenizer,
        append_end: bool,
        output_prefix: impl AsRef<Path>,
    ) -> Result<()> {
        let (input, prefix) = (c_path(input.as_ref())?, c_path(output_prefix.as_ref())?);
        // SAFETY: reads the texts and the tokenizer.
        check(unsafe {
            sys::ds_dataset_build(
                input.as_ptr(),
                tokenizer.raw(),
                append_end.into(),
                prefix.as_ptr(),
            )
        })
    }

    /// Writes the documents of several data sets of tokens, given by their prefixes, one after another
    /// into `PREFIX.bin` and `PREFIX.idx`.
    pub fn merge<P: AsRef<Path>>(prefixes: &[P], output_prefix: impl AsRef<Path>) -> Result<()> {
        let names = prefixes
            .iter()
            .map(|prefix| prefix.as_ref().to_string_lossy().into_owned().into())
            .collect();
        let inputs = c_text("the prefixes", Value::List(names).to_string())?;
        let prefix = c_path(output_prefix.as_ref())?;
        // SAFETY: reads the texts.
        check(unsafe { sys::ds_dataset_merge(inputs.as_ptr(), prefix.as_ptr()) })
    }

    fn info(&self) -> Result<sys::ds_dataset_info> {
        // SAFETY: fills the struct.
        describe(|out| unsafe { sys::ds_dataset_describe(self.raw(), out) })
    }

    /// Number of samples.
    pub fn samples(&self) -> Result<usize> {
        Ok(to_usize(self.info()?.samples))
    }

    /// Tokens of a sample, less one.
    pub fn sequence_length(&self) -> Result<usize> {
        Ok(to_usize(self.info()?.sequence_length))
    }

    /// The `sequence_length + 1` running tokens of a sample.
    pub fn sample(&self, index: usize) -> Result<Vec<i32>> {
        // SAFETY: gives a tensor.
        let tokens = make(|out| unsafe { sys::ds_dataset_sample(self.raw(), to_i64(index), out) })?;
        Tensor::of(tokens).to_vec()
    }

    /// One field of a sample, `sequence_length` numbers: `"ids"`, `"labels"`, `"segments"`,
    /// `"token_types"` (`i32`) or `"mask"` (`u8`).
    pub fn field(&self, index: usize, field: &str) -> Result<Tensor<'static>> {
        let field = c_text("the field", field)?;
        // SAFETY: reads the text and gives a tensor.
        let values = make(|out| unsafe {
            sys::ds_dataset_field(self.raw(), to_i64(index), field.as_ptr(), out)
        })?;
        Ok(Tensor::of(values))
    }
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.info() {
            Ok(info) => write!(
                f,
                "Dataset({} samples of {})",
                info.samples, info.sequence_length
            ),
            Err(error) => write!(f, "Dataset({error})"),
        }
    }
}
