//! `IQ2_S`: f16 `d`, u8 `qs[32]`, u8 `signs[32]`, u8 `qh[8]` with two more bits of each codebook index, u8 `scales[8]`
//! with a scale of four bits for each 16 values.

use super::{Call, half, nibble, signed, tables::IQ2S_GRID};

const QS: usize = 2;
const SIGNS: usize = 34;
const QH: usize = 66;
const SCALES: usize = 74;

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, eight) in out.chunks_exact_mut(8).enumerate() {
        let scale = d * (0.5 + f32::from(nibble(&block[SCALES..], i / 2))) * 0.25;
        let high = usize::from(block[QH + i / 4] >> (2 * (i % 4)) & 3);
        let index = usize::from(block[QS + i]) | high << 8;
        signed(scale, IQ2S_GRID[index], block[SIGNS + i], eight);
    }
}

pub(super) fn call(block: &[u8], k: usize) -> Call {
    let scale = |i| i32::from(nibble(&block[SCALES..], 2 * k + i));
    let mut call = Call::new(half(block, 0), [scale(0), scale(1)]);
    for l in 0..4 {
        let high = usize::from(block[QH + k] >> (2 * l) & 3);
        let grid = IQ2S_GRID[usize::from(block[QS + 4 * k + l]) | high << 8];
        call.signed(8 * l, grid, 8, block[SIGNS + 4 * k + l]);
    }
    call
}
