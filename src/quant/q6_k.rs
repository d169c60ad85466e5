//! `Q6_K`: u8 `ql[128]`, u8 `qh[64]`, i8 `scales[16]`, f16 `d`; in each half of the block the low four bits of 32 values
//! lie in the low halves of 32 bytes, of the next 32 in the next 32 bytes, then the high halves of both.

use super::{Call, half};

const QH: usize = 128;
const SCALES: usize = 192;
const D: usize = 208;

pub(super) fn scales(block: &[u8]) -> [f32; 2] {
    [half(block, D), 0.0]
}

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, D);
    for (i, values) in out.chunks_exact_mut(32).enumerate() {
        let (upper, quarter) = (i / 4, i % 4);
        for (j, y) in values.iter_mut().enumerate() {
            let low = (block[64 * upper + 32 * (quarter % 2) + j] >> (4 * (quarter / 2))) & 15;
            let high = (block[QH + 32 * upper + j] >> (2 * quarter)) & 3;
            let code = (low | high << 4) as i8 - 32;
            let scale = block[SCALES + 2 * i + j / 16] as i8;
            *y = d * f32::from(scale) * f32::from(code);
        }
    }
}

pub(super) fn call(block: &[u8], k: usize) -> Call {
    let scale = |i| i32::from(block[SCALES + 2 * k + i] as i8);
    let mut call = Call::new(half(block, D), [scale(0), scale(1)]);
    let (upper, quarter) = (k / 4, k % 4);
    for (j, code) in call.codes.iter_mut().enumerate() {
        let low = (block[64 * upper + 32 * (quarter % 2) + j] >> (4 * (quarter / 2))) & 15;
        let high = (block[QH + 32 * upper + j] >> (2 * quarter)) & 3;
        *code = (low | high << 4) as i8 - 32;
    }
    call
}
