//! `IQ4_XS`: f16 `d`, u16 `scales_h`, u8 `scales_l[4]`, u8 `qs[128]`; a scale of six bits, less 32, for each 32 values,
//! whose codes lie as in `IQ4_NL`.

use super::{Call, half, half_bits, nibble, tables::IQ4NL_VALUES};

const SCALES_HIGH: usize = 2;
const SCALES_LOW: usize = 4;
const QS: usize = 8;

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, values) in out.chunks_exact_mut(32).enumerate() {
        let high = (half_bits(block, SCALES_HIGH) >> (2 * i)) as u8 & 3;
        let scale = d * f32::from((nibble(&block[SCALES_LOW..], i) | high << 4) as i8 - 32);
        for (j, y) in values.iter_mut().enumerate() {
            let code = (block[QS + 16 * i + j % 16] >> (4 * (j / 16))) & 15;
            *y = scale * f32::from(IQ4NL_VALUES[usize::from(code)]);
        }
    }
}

pub(super) fn call(block: &[u8], k: usize) -> Call {
    let high = i32::from(half_bits(block, SCALES_HIGH) >> (2 * k) & 3);
    let scale = i32::from(nibble(&block[SCALES_LOW..], k)) + 16 * high - 32;
    let mut call = Call::new(half(block, 0), [scale, 0]);
    for j in 0..16 {
        let byte = block[QS + 16 * k + j];
        call.codes[j] = IQ4NL_VALUES[usize::from(byte & 15)];
        call.codes[j + 16] = IQ4NL_VALUES[usize::from(byte >> 4)];
    }
    call
}
