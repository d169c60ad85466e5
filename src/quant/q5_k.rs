//! `Q5_K`: as `Q4_K`, with u8 `qh[32]` before `qs`: bit `i` of byte `j` is the fifth bit of value `j` of the i-th 32.

use super::{Call, Minimum, half, scale_and_minimum};

const SCALES: usize = 4;
const QH: usize = 16;
const QS: usize = 48;

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    for (i, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[SCALES..], i);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        for (j, y) in values.iter_mut().enumerate() {
            let low = (block[QS + 32 * (i / 2) + j] >> (4 * (i % 2))) & 15;
            let code = low | (block[QH + j] >> i & 1) << 4;
            *y = scale * f32::from(code) - minimum;
        }
    }
}

pub(super) fn call(block: &[u8], k: usize) -> Call {
    let (scale, minimum) = scale_and_minimum(&block[SCALES..], k);
    let mut call = Call::new(half(block, 0), [scale.into(), 0]);
    call.minimum = Minimum::Codes { scale: half(block, 2), factor: minimum.into() };
    for (j, code) in call.codes.iter_mut().enumerate() {
        let low = block[QS + 32 * (k / 2) + j] >> (4 * (k % 2)) & 15;
        *code = (low | (block[QH + j] >> k & 1) << 4) as i8;
    }
    call
}
