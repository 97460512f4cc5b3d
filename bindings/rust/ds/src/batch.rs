//! Sequences that go through a model together.
use std::ptr;

use ds_sys as sys;

use crate::ffi::sized;
use crate::tensor::Tensor;

/// Sequences that go through a model together: tensors of shape `[batch, length]` in host memory.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    ids: &'a Tensor<'a>,
    labels: Option<&'a Tensor<'a>>,
    attention_mask: Option<&'a Tensor<'a>>,
    segments: Option<&'a Tensor<'a>>,
    token_types: Option<&'a Tensor<'a>>,
}

impl<'a> Batch<'a> {
    /// Token ids, `i32` or `i64`.
    pub fn new(ids: &'a Tensor<'a>) -> Batch<'a> {
        Batch {
            ids,
            labels: None,
            attention_mask: None,
            segments: None,
            token_types: None,
        }
    }

    /// What shall be predicted: label (b, t) is the token that position (b, t) shall predict, -100
    /// is not counted. Models that classify or regress take other shapes: see `ds_batch`.
    pub fn labels(self, labels: &'a Tensor<'a>) -> Batch<'a> {
        Batch {
            labels: Some(labels),
            ..self
        }
    }

    /// 0 = padding: `u8`, [`Bool`](crate::Bool), `i32` or `i64`.
    pub fn attention_mask(self, mask: &'a Tensor<'a>) -> Batch<'a> {
        Batch {
            attention_mask: Some(mask),
            ..self
        }
    }

    /// Numbers of packed sequences, `i32` or `i64`: tokens see their own segment only.
    pub fn segments(self, segments: &'a Tensor<'a>) -> Batch<'a> {
        Batch {
            segments: Some(segments),
            ..self
        }
    }

    /// Token types, `i32` or `i64`, of models that have them.
    pub fn token_types(self, types: &'a Tensor<'a>) -> Batch<'a> {
        Batch {
            token_types: Some(types),
            ..self
        }
    }

    /// The struct that calls take; it holds handles that live as long as `self`.
    pub(crate) fn raw(&self) -> sys::ds_batch {
        let handle = |tensor: Option<&Tensor<'_>>| {
            tensor.map_or(ptr::null(), |tensor| tensor.raw() as *const _)
        };
        sys::ds_batch {
            ids: self.ids.raw(),
            labels: handle(self.labels),
            attention_mask: handle(self.attention_mask),
            segments: handle(self.segments),
            token_types: handle(self.token_types),
            ..sized()
        }
    }
}
