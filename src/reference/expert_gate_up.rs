//! Rows of an expert's gate or up matrix times a token's activations.

use super::expert_quantize::scale_and_sum;
use crate::exact::{fma, tree32};
use crate::quant::{Format, Minimum, Q8Block};

/// All rows of a matrix times one row of activations.
///
/// * `matrix`: blocks of `format`, rows of `32 * x.len()` values one after the other;
/// * `x`: blocks of [`expert_quantize`](super::expert_quantize()).
pub fn expert_gate_up(format: Format, matrix: &[u8], x: &[Q8Block]) -> Vec<f32> {
    let values = 32 * x.len();
    let row_bytes = values / format.block_values() * format.block_bytes();
    matrix.chunks_exact(row_bytes).map(|row| product(format, row, x)).collect()
}

/// A row times activations: lanes take calls in turn, then the tree.
pub(super) fn product(format: Format, row: &[u8], x: &[Q8Block]) -> f32 {
    let mut lanes = [0.0f32; 32];
    for k in 0..format.calls(32 * x.len()) {
        let call = format.call(row, k);
        let block = &x[format.activation_block(k)];
        let (d, sum) = scale_and_sum(block);
        let (mut a, mut b, mut codes) = (0, 0, 0);
        for i in 0..16 {
            a += i32::from(call.codes[i]) * i32::from(block.codes[i]);
            b += i32::from(call.codes[16 + i]) * i32::from(block.codes[16 + i]);
            codes += i32::from(block.codes[i]) + i32::from(block.codes[16 + i]);
        }
        let integer = format.integer(call.scales, a, b);
        let lane = &mut lanes[k % 32];
        *lane = fma(call.scale * d, integer as f32, *lane);
        match call.minimum {
            Minimum::None => {}
            Minimum::Codes { scale, factor } => *lane = fma(-(scale * d), (factor * codes) as f32, *lane),
            Minimum::Sum { scale } => *lane = fma(scale, sum, *lane),
        }
    }
    tree32(&mut lanes)
}
