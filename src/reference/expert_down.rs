//! Rows of an expert's down matrix times the gated activation.

use super::expert_gate_up::product;
use crate::quant::{Format, Q8Block};

/// All rows of the matrix times one row of activations; as [`expert_gate_up`](super::expert_gate_up()), `h` the blocks of
/// [`expert_swiglu`](super::expert_swiglu())'s result.
pub fn expert_down(format: Format, matrix: &[u8], h: &[Q8Block]) -> Vec<f32> {
    let values = 32 * h.len();
    let row_bytes = values / format.block_values() * format.block_bytes();
    matrix.chunks_exact(row_bytes).map(|row| product(format, row, h)).collect()
}
