//! Text to token ids and back.
use std::path::Path;

use ds_sys as sys;

use crate::error::{check, Result};
use crate::ffi::{
    c_option, c_path, c_text, describe, make, pointer, text, to_i64, to_usize, Handle,
};
use crate::tensor::{Tensor, TensorRef};

/// Turns text into token ids and back. Immutable: threads may share one.
///
/// ```
/// let tokenizer = ds::Tokenizer::bytes()?;
/// assert_eq!(tokenizer.encode("Hi", false)?, [72, 105]);
/// assert_eq!(tokenizer.decode(&[72, 105], false)?, "Hi");
/// # Ok::<(), ds::Error>(())
/// ```
pub struct Tokenizer {
    handle: Handle<sys::ds_tokenizer>,
}

// SAFETY: all functions of a tokenizer may be called from any thread.
unsafe impl Send for Tokenizer {}
// SAFETY: on one handle from many threads at once, too.
unsafe impl Sync for Tokenizer {}

impl Tokenizer {
    pub(crate) fn raw(&self) -> *mut sys::ds_tokenizer {
        self.handle.raw()
    }

    /// The tokenizer whose tokens are the 256 byte values.
    pub fn bytes() -> Result<Tokenizer> {
        // SAFETY: gives a handle.
        let handle = make(|out| unsafe { sys::ds_tokenizer_create_bytes(out) })?;
        Ok(Tokenizer { handle })
    }

    /// Reads a `tokenizer.json`, a folder that holds one (or `vocab.json` and `merges.txt`), or a
    /// checkpoint that holds one.
    pub fn open(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = c_path(path.as_ref())?;
        // SAFETY: reads the text.
        let handle = make(|out| unsafe { sys::ds_tokenizer_open(path.as_ptr(), out) })?;
        Ok(Tokenizer { handle })
    }

    /// Reads the text of a `tokenizer.json`.
    pub fn from_json(json: &str) -> Result<Tokenizer> {
        let size = to_i64(json.len());
        // SAFETY: reads `size` bytes.
        let handle =
            make(|out| unsafe { sys::ds_tokenizer_from_json(json.as_ptr().cast(), size, out) })?;
        Ok(Tokenizer { handle })
    }

    /// Learns a byte-level byte-pair encoding from text. Options are those of `ds_tokenizer_train`,
    /// such as `{"vocab_size": 1000}`.
    pub fn train(corpus: &str, options: Option<&str>) -> Result<Tokenizer> {
        let options = c_option("options", options)?;
        let size = to_i64(corpus.len());
        // SAFETY: reads `size` bytes and the options.
        let handle = make(|out| unsafe {
            sys::ds_tokenizer_train(corpus.as_ptr().cast(), size, pointer(&options), out)
        })?;
        Ok(Tokenizer { handle })
    }

    /// Token ids of a text, which may be any bytes; `add_special` adds what the tokenizer's template
    /// puts around a text.
    pub fn encode(&self, input: impl AsRef<[u8]>, add_special: bool) -> Result<Vec<i32>> {
        let input = input.as_ref();
        let (data, size) = (input.as_ptr().cast(), to_i64(input.len()));
        // SAFETY: reads `size` bytes.
        let ids = make(|out| unsafe {
            sys::ds_tokenizer_encode(self.raw(), data, size, add_special.into(), out)
        })?;
        Tensor::of(ids).to_vec()
    }

    /// Text of token ids; bytes that are not UTF-8, and U+0000, become U+FFFD.
    pub fn decode(&self, ids: &[i32], skip_special: bool) -> Result<String> {
        let ids: TensorRef<'_> = Tensor::from_slice(ids, &[ids.len()])?;
        // SAFETY: reads the ids.
        text(|out| unsafe {
            sys::ds_tokenizer_decode(self.raw(), ids.raw(), skip_special.into(), out)
        })
    }

    fn info(&self) -> Result<sys::ds_tokenizer_info> {
        // SAFETY: fills the struct.
        describe(|out| unsafe { sys::ds_tokenizer_describe(self.raw(), out) })
    }

    /// Number of token ids: they are in `0..vocab_size`.
    pub fn vocab_size(&self) -> Result<usize> {
        Ok(to_usize(self.info()?.vocab_size))
    }

    /// The end-of-text token, where there is one.
    pub fn end_of_text(&self) -> Result<Option<i32>> {
        Ok(Some(self.info()?.end_of_text).filter(|&id| id >= 0))
    }

    /// Id of a token as the tokenizer's file spells it.
    pub fn token_to_id(&self, token: &str) -> Result<i32> {
        let token = c_text("the token", token)?;
        let mut id = 0;
        // SAFETY: writes one number.
        check(unsafe { sys::ds_tokenizer_token_to_id(self.raw(), token.as_ptr(), &mut id) })?;
        Ok(id)
    }

    /// Spelling of a token id.
    pub fn id_to_token(&self, id: i32) -> Result<String> {
        // SAFETY: gives a text.
        text(|out| unsafe { sys::ds_tokenizer_id_to_token(self.raw(), id, out) })
    }

    /// The tokenizer as the text of a `tokenizer.json`.
    pub fn to_json(&self) -> Result<String> {
        // SAFETY: gives a text.
        text(|out| unsafe { sys::ds_tokenizer_to_json(self.raw(), out) })
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.vocab_size() {
            Ok(size) => write!(f, "Tokenizer({size} tokens)"),
            Err(error) => write!(f, "Tokenizer({error})"),
        }
    }
}
