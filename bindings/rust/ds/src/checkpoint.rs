//! Checkpoints on disk, without an engine.
use std::path::Path;

use ds_sys as sys;

use crate::error::{check, Result};
use crate::ffi::{c_option, c_path, c_text, pointer, text};

/// Describes a checkpoint as JSON: tags of the folder, counters, tensors, configuration. Without a
/// tag the newest valid one.
pub fn inspect(folder: impl AsRef<Path>, tag: Option<&str>) -> Result<String> {
    let (folder, tag) = (c_path(folder.as_ref())?, c_option("the tag", tag)?);
    // SAFETY: reads the texts and gives one.
    text(|out| unsafe { sys::ds_checkpoint_inspect(folder.as_ptr(), pointer(&tag), out) })
}

/// Reads every byte of a checkpoint and compares checksums; the error names file, tensor and bytes.
pub fn verify(folder: impl AsRef<Path>, tag: Option<&str>) -> Result<()> {
    let (folder, tag) = (c_path(folder.as_ref())?, c_option("the tag", tag)?);
    // SAFETY: reads the texts.
    check(unsafe { sys::ds_checkpoint_verify(folder.as_ptr(), pointer(&tag)) })
}

/// Deletes one checkpoint of a folder, valid or not. Nobody may be reading it.
pub fn delete(folder: impl AsRef<Path>, tag: &str) -> Result<()> {
    let (folder, tag) = (c_path(folder.as_ref())?, c_text("the tag", tag)?);
    // SAFETY: reads the texts.
    check(unsafe { sys::ds_checkpoint_delete(folder.as_ptr(), tag.as_ptr()) })
}
