//! `IQ1_M`: u8 `qs[32]`, u8 `qh[16]`, u16 `scales[4]`; the block's scale is an f16 in the high bits of `scales`.

use super::{Call, half_bits, tables::IQ1S_GRID};
use crate::exact::f16_to_f32;

const QH: usize = 32;
const SCALES: usize = 48;

pub(super) fn scales(block: &[u8]) -> [f32; 2] {
    let bits = (0..4).map(|i| (half_bits(block, SCALES + 2 * i) >> 12) << (4 * i)).sum();
    [f16_to_f32(bits), 0.0]
}

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let [d, _] = scales(block);
    for (i, eight) in out.chunks_exact_mut(8).enumerate() {
        // A scale of three bits for each 16 values, four in a word.
        let scale = (half_bits(block, SCALES + 2 * (i / 8)) >> (3 * (i / 2 % 4))) & 7;
        let high = (block[QH + i / 2] >> (4 * (i % 2))) & 15;
        let delta = if high & 8 == 0 { 0.125 } else { -0.125 };
        let grid = IQ1S_GRID[usize::from(block[i]) | usize::from(high & 7) << 8];
        let dl = d * f32::from(2 * scale + 1);
        for (y, code) in eight.iter_mut().zip(grid.to_le_bytes()) {
            *y = dl * (f32::from(code as i8) + delta);
        }
    }
}

/// Codes in eighths: 8 times the codebook's value, one up or down. The scale takes the eighth back, exactly.
pub(super) fn call(block: &[u8], k: usize) -> Call {
    let [d, _] = scales(block);
    let bits = half_bits(block, SCALES + 2 * (k / 2)) >> (6 * (k % 2));
    let mut call = Call::new(d * 0.125, [2 * i32::from(bits & 7) + 1, 2 * i32::from(bits >> 3 & 7) + 1]);
    for (l, eight) in call.codes.chunks_exact_mut(8).enumerate() {
        let i = 4 * k + l;
        let high = (block[QH + i / 2] >> (4 * (i % 2))) & 15;
        let grid = IQ1S_GRID[usize::from(block[i]) | usize::from(high & 7) << 8];
        let delta = if high & 8 == 0 { 1 } else { -1 };
        for (code, value) in eight.iter_mut().zip(grid.to_le_bytes()) {
            *code = 8 * value as i8 + delta;
        }
    }
    call
}
