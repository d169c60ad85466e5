//! `Q8_0`: f16 `d`, i8 `qs[32]`.

use super::half;

pub(super) fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (y, &code) in out.iter_mut().zip(&block[2..]) {
        *y = f32::from(code as i8) * d;
    }
}
