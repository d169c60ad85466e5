//! `IQ3_XXS`: f16 `d`, u8 `qs[64]`, then for each 32 values a word with four times seven sign bits and a scale of four
//! bits.

use super::{Call, half, signed, signs7, tables::IQ3XXS_GRID, word};

const QS: usize = 2;
const SIGNS: usize = 66;

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, values) in out.chunks_exact_mut(32).enumerate() {
        let signs = word(block, SIGNS + 4 * i);
        let scale = d * (0.5 + (signs >> 28) as f32) * 0.5;
        for (l, four) in values.chunks_exact_mut(4).enumerate() {
            let grid = IQ3XXS_GRID[usize::from(block[QS + 8 * i + l])];
            let eight = signs7(signs >> (7 * (l / 2)));
            signed(scale, grid.into(), eight >> (4 * (l % 2)), four);
        }
    }
}

pub(super) fn call(block: &[u8], k: usize) -> Call {
    let signs = word(block, SIGNS + 4 * k);
    let mut call = Call::new(half(block, 0), [(signs >> 28) as i32, 0]);
    for l in 0..8 {
        let grid = IQ3XXS_GRID[usize::from(block[QS + 8 * k + l])];
        call.signed(4 * l, grid.into(), 4, signs7(signs >> (7 * (l / 2))) >> (4 * (l % 2)));
    }
    call
}
