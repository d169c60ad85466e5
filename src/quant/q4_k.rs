//! `Q4_K`: f16 `d`, f16 `dmin`, 12 bytes with eight scales and minimums of six bits, u8 `qs[128]`; of each 32 bytes the
//! low halves come first.

use super::{Call, Minimum, half, scale_and_minimum};

const SCALES: usize = 4;
const QS: usize = 16;

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    for (i, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[SCALES..], i);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        for (j, y) in values.iter_mut().enumerate() {
            let code = (block[QS + 32 * (i / 2) + j] >> (4 * (i % 2))) & 15;
            *y = scale * f32::from(code) - minimum;
        }
    }
}

pub(super) fn call(block: &[u8], k: usize) -> Call {
    let (scale, minimum) = scale_and_minimum(&block[SCALES..], k);
    let mut call = Call::new(half(block, 0), [scale.into(), 0]);
    call.minimum = Minimum::Codes { scale: half(block, 2), factor: minimum.into() };
    for (j, code) in call.codes.iter_mut().enumerate() {
        *code = (block[QS + 32 * (k / 2) + j] >> (4 * (k % 2)) & 15) as i8;
    }
    call
}
