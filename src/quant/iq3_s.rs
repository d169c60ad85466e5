//! `IQ3_S`: f16 `d`, u8 `qs[64]`, u8 `qh[8]` with the ninth bit of each codebook index, u8 `signs[32]`, u8 `scales[4]`
//! with a scale of four bits for each 32 values.

use super::{Call, half, nibble, signed, tables::IQ3S_GRID};

const QS: usize = 2;
const QH: usize = 66;
const SIGNS: usize = 74;
const SCALES: usize = 106;

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, four) in out.chunks_exact_mut(4).enumerate() {
        let scale = d * f32::from(1 + 2 * nibble(&block[SCALES..], i / 8));
        let high = usize::from(block[QH + i / 8] >> (i % 8) & 1);
        let grid = IQ3S_GRID[usize::from(block[QS + i]) | high << 8];
        signed(scale, grid.into(), block[SIGNS + i / 2] >> (4 * (i % 2)), four);
    }
}

pub(super) fn call(block: &[u8], k: usize) -> Call {
    let mut call = Call::new(half(block, 0), [1 + 2 * i32::from(nibble(&block[SCALES..], k)), 0]);
    for l in 0..8 {
        let high = usize::from(block[QH + k] >> l & 1);
        let grid = IQ3S_GRID[usize::from(block[QS + 8 * k + l]) | high << 8];
        call.signed(4 * l, grid.into(), 4, block[SIGNS + 4 * k + l / 2] >> (4 * (l % 2)));
    }
    call
}
