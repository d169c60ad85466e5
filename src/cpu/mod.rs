//! The CPU backend: whole windows, all cores, the same bytes as every other backend.
//!
//! Work is spread over rows, blocks, heads and chunks, and vectors run across lanes or dims. No sum is reordered: what is
//! a loop in the definition is a loop here, and what is parallel here is independent there. The hot functions are
//! compiled once for the base instruction set and once with fused multiply-add vectors, and picked at run time; a CPU
//! without fused multiply-add gives the same bits, slowly.
//!
//! These functions do not check shapes; the layers do. Arrays that are too short panic, ids that are too large are
//! clamped, floats may be anything.

mod lanes;
mod qsa_attend;
mod qsa_merge;
mod qsa_score;
mod qsa_topk;

pub use qsa_attend::qsa_attend;
pub use qsa_merge::{output_f16, qsa_merge};
pub use qsa_score::qsa_score;
pub use qsa_topk::qsa_topk;

use crate::shape::Step;

/// The part of each row that a stage works on: `len` values from `i * stride`. What lies beyond them stays untouched.
fn rows<'a, T>(
    steps: &[Step],
    mut data: &'a mut [T],
    stride: usize,
    len: impl Fn(&Step) -> usize,
) -> Vec<&'a mut [T]> {
    let mut rows = Vec::with_capacity(steps.len());
    for (i, step) in steps.iter().enumerate() {
        assert!(len(step) <= stride, "row {i}: a stride of {stride} is too short for {} values", len(step));
        // The last row need not be filled up to the stride.
        let (row, rest) = data.split_at_mut(stride.min(data.len()));
        rows.push(&mut row[..len(step)]);
        data = rest;
    }
    rows
}
