//! `IQ2_XXS`: f16 `d`, then for each 32 values four codebook indices of a byte and a word with four times seven sign
//! bits and a scale of four bits.

use super::{Call, half, signed, signs7, tables::IQ2XXS_GRID, word};

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, values) in out.chunks_exact_mut(32).enumerate() {
        let at = 2 + 8 * i;
        let signs = word(block, at + 4);
        let scale = d * (0.5 + (signs >> 28) as f32) * 0.25;
        for (l, eight) in values.chunks_exact_mut(8).enumerate() {
            signed(scale, IQ2XXS_GRID[usize::from(block[at + l])], signs7(signs >> (7 * l)), eight);
        }
    }
}

pub(super) fn call(block: &[u8], k: usize) -> Call {
    let at = 2 + 8 * k;
    let signs = word(block, at + 4);
    let mut call = Call::new(half(block, 0), [2 * (signs >> 28) as i32 + 1, 0]);
    for l in 0..4 {
        call.signed(8 * l, IQ2XXS_GRID[usize::from(block[at + l])], 8, signs7(signs >> (7 * l)));
    }
    call
}
