//! Activations as blocks of 32 codes.

use crate::exact::{div, f16_to_f32, f32_to_f16, tree32};
use crate::quant::Q8Block;

/// The blocks of a row of activations; `x.len()` is a multiple of 32.
///
/// The scale is the largest magnitude over 127; a code is the value over the scale, rounded half away from zero. The codes
/// come of the scale in binary32, the block keeps it as f16. The sum is that of the values, a tree. Both are clamped to
/// the range of f16, so that no block of finite values holds an infinity.
pub fn expert_quantize(x: &[f32]) -> Vec<Q8Block> {
    x.chunks_exact(32)
        .map(|values| {
            // Magnitudes are ordered as their bits are.
            let largest = values.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
            let d = div(f32::from_bits(largest), 127.0);
            let mut block = Q8Block { scale: clamped_f16(d), ..Q8Block::default() };
            for (code, &value) in block.codes.iter_mut().zip(values) {
                *code = if d == 0.0 { 0 } else { rounded(div(value, d)) };
            }
            let mut lanes: [f32; 32] = values.try_into().expect("32 values");
            block.sum = clamped_f16(tree32(&mut lanes));
            block
        })
        .collect()
}

/// Half away from zero; beyond 127, and NaN, is 127.
fn rounded(quotient: f32) -> i8 {
    let magnitude = f32::from_bits(quotient.to_bits() & 0x7fff_ffff);
    let magnitude = if magnitude < 127.0 { magnitude } else { 127.0 };
    let whole = magnitude as i32;
    // The difference is exact.
    let code = whole + i32::from(magnitude - whole as f32 >= 0.5);
    (if quotient.to_bits() >> 31 == 1 { -code } else { code }) as i8
}

/// f16 bits of a value held to +-65504.
fn clamped_f16(x: f32) -> u16 {
    let x = if x > 65504.0 { 65504.0 } else { x };
    f32_to_f16(if x < -65504.0 { -65504.0 } else { x })
}

/// The scale and the sum of a block as the products use them.
pub(super) fn scale_and_sum(block: &Q8Block) -> (f32, f32) {
    (f16_to_f32(block.scale), f16_to_f32(block.sum))
}
