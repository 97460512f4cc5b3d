//! The parts of a mixture of experts around the experts, for programs that compute gradients
//! themselves: which experts a token chooses, its way to them, and the sum of what they give.
//!
//! The gradient of [`dispatch`] without weights is [`combine`] without weights, of the rows'
//! gradient; that of [`combine`] is [`dispatch`] with its weights, of the output's gradient, for the
//! rows, and [`weights_backward`] for the weights.
//!
//! ```
//! use ds::{experts, Tensor};
//! let logits = Tensor::from_vec(vec![0.0f32, 2.0, 1.0, 0.5], &[2, 2])?;
//! let gate = experts::gate(&logits, None, Some(r#"{"top_k": 1}"#))?;
//! let routes = experts::sort(&gate.chosen, 2)?;
//! let tokens = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
//! let rows = experts::dispatch(&tokens, &routes.order, 1, None)?; // the second token comes first
//! assert_eq!(rows.to_vec::<f32>()?, [3.0, 4.0, 1.0, 2.0]);
//! let back = experts::combine(&rows, &routes.places, None)?;
//! assert_eq!(back.to_vec::<f32>()?, tokens.to_vec::<f32>()?);
//! # Ok::<(), ds::Error>(())
//! ```
use std::ptr;

use ds_sys as sys;

use crate::error::{check, check_version, Result};
use crate::ffi::{c_option, make, pointer, Handle};
use crate::tensor::Tensor;

/// What a gate says of every token.
pub struct Gate {
    /// `i32` `[tokens, top_k]`: experts, best first; -1 where one had no room.
    pub chosen: Tensor<'static>,
    /// `f32` `[tokens, top_k]`.
    pub weights: Tensor<'static>,
    /// `i64` `[3, experts]`: tokens that chose each expert, that it took, that the balancing loss
    /// counts.
    pub counts: Tensor<'static>,
    /// `f32` `[2]`: the balancing loss, 1 where loads are equal, and the z-loss.
    pub losses: Tensor<'static>,
}

/// Routes sorted by expert; a route is number token * choices + choice.
pub struct SortedRoutes {
    /// `i32` `[experts + 1]`: where each expert's rows begin.
    pub offsets: Tensor<'static>,
    /// `i32` `[rows]`: the route of each row.
    pub order: Tensor<'static>,
    /// `i32` `[tokens, choices]`: the row of each route, or -1.
    pub places: Tensor<'static>,
}

fn raw_or_null(tensor: Option<&Tensor<'_>>) -> *mut sys::ds_tensor {
    tensor.map_or(ptr::null_mut(), Tensor::raw)
}

/// What a call gives through `N` out-parameters.
fn tensors<const N: usize>(
    call: impl FnOnce(&mut [*mut sys::ds_tensor; N]) -> sys::ds_status,
) -> Result<[Tensor<'static>; N]> {
    check_version()?;
    let mut out = [ptr::null_mut(); N];
    check(call(&mut out))?;
    let handles: Vec<_> = out.into_iter().map(Handle::own).collect();
    let mut made = Vec::with_capacity(N);
    for handle in handles {
        made.push(Tensor::of(handle?));
    }
    Ok(made
        .try_into()
        .unwrap_or_else(|_| unreachable!("N handles")))
}

/// Chooses the experts of each token by its logits (`f32` `[tokens, experts]`). `bias` (`f32`
/// `[experts]`) is added for choosing alone; `options` are JSON, see `ds_experts_gate`.
pub fn gate(logits: &Tensor<'_>, bias: Option<&Tensor<'_>>, options: Option<&str>) -> Result<Gate> {
    let options = c_option("options", options)?;
    // SAFETY: reads tensors and a text, gives four handles.
    let [chosen, weights, counts, losses] = tensors(|out| unsafe {
        let [chosen, weights, counts, losses] = out;
        sys::ds_experts_gate(
            logits.raw(),
            raw_or_null(bias),
            pointer(&options),
            chosen,
            weights,
            counts,
            losses,
        )
    })?;
    Ok(Gate {
        chosen,
        weights,
        counts,
        losses,
    })
}

/// The gradient of [`gate`] with respect to its logits, from those of its weights and losses; options
/// as it was given them.
pub fn gate_backward(
    logits: &Tensor<'_>,
    gate: &Gate,
    weights_gradient: Option<&Tensor<'_>>,
    losses_gradient: Option<&Tensor<'_>>,
    options: Option<&str>,
) -> Result<Tensor<'static>> {
    let options = c_option("options", options)?;
    // SAFETY: reads tensors and a text, gives a handle.
    let handle = make(|out| unsafe {
        sys::ds_experts_gate_backward(
            logits.raw(),
            gate.chosen.raw(),
            gate.counts.raw(),
            pointer(&options),
            raw_or_null(weights_gradient),
            raw_or_null(losses_gradient),
            out,
        )
    })?;
    Ok(Tensor::of(handle))
}

/// Sorts routes (`i32` `[tokens, choices]`, -1 for none) by expert, with the order of tokens kept.
pub fn sort(chosen: &Tensor<'_>, experts: i64) -> Result<SortedRoutes> {
    // SAFETY: reads a tensor, gives three handles.
    let [offsets, order, places] = tensors(|out| unsafe {
        let [offsets, order, places] = out;
        sys::ds_experts_sort(chosen.raw(), experts, offsets, order, places)
    })?;
    Ok(SortedRoutes {
        offsets,
        order,
        places,
    })
}

/// Rows of routes: row r is token `order[r] / choices`, times the weight of its route where there are
/// any.
pub fn dispatch(
    tokens: &Tensor<'_>,
    order: &Tensor<'_>,
    choices: i64,
    weights: Option<&Tensor<'_>>,
) -> Result<Tensor<'static>> {
    // SAFETY: reads tensors, gives a handle.
    let handle = make(|out| unsafe {
        sys::ds_experts_dispatch(
            tokens.raw(),
            order.raw(),
            choices,
            raw_or_null(weights),
            out,
        )
    })?;
    Ok(Tensor::of(handle))
}

/// The sum of the rows of each token's routes, times their weights where there are any.
pub fn combine(
    rows: &Tensor<'_>,
    places: &Tensor<'_>,
    weights: Option<&Tensor<'_>>,
) -> Result<Tensor<'static>> {
    // SAFETY: reads tensors, gives a handle.
    let handle = make(|out| unsafe {
        sys::ds_experts_combine(rows.raw(), places.raw(), raw_or_null(weights), out)
    })?;
    Ok(Tensor::of(handle))
}

/// The gradient of [`combine`] with respect to its weights, from that of its result.
pub fn weights_backward(
    rows: &Tensor<'_>,
    places: &Tensor<'_>,
    gradient: &Tensor<'_>,
) -> Result<Tensor<'static>> {
    // SAFETY: reads tensors, gives a handle.
    let handle = make(|out| unsafe {
        sys::ds_experts_weights_backward(rows.raw(), places.raw(), gradient.raw(), out)
    })?;
    Ok(Tensor::of(handle))
}
