//! `IQ1_M`: u8 `qs[32]`, u8 `qh[16]`, u16 `scales[4]`; the block's scale is an f16 in the high bits of `scales`.

use super::{half_bits, tables::IQ1S_GRID};
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
