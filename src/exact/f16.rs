//! binary16, by integer steps only: some drivers fuse a narrowing conversion with what comes before it, others
//! round it wrongly.

use super::{INF, SIGN};

/// `x` rounded to binary16, half to even; overflow (from 65,520 on) gives infinity, NaN the quiet NaN.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits & SIGN) >> 16;
    let a = bits & !SIGN;
    // Normal result: move the exponent, then round at bit 13. The carry runs into the exponent, up to infinity.
    let n = a.wrapping_sub(112 << 23);
    let normal = n.wrapping_add(0xfff + ((a >> 13) & 1)) >> 13;
    // Subnormal result: shift the significand to the unit 2^-24. From 25 on nothing is left to round up.
    let m = (a & 0x007f_ffff) | 0x0080_0000;
    let s = (126 - (a >> 23).min(112)).min(31);
    let subnormal = (m + (0xffff_ffff >> (33 - s)) + ((m >> s) & 1)) >> s;
    let h = if a < (113 << 23) { subnormal } else { normal };
    let h = if a >= 0x477f_f000 { 0x7c00 } else { h };
    let h = if a > INF { 0x7e00 } else { h };
    (sign | h) as u16
}

/// The value of the binary16 number with bits `h`; exact.
#[inline(always)]
pub fn f16_to_f32(h: u16) -> f32 {
    let h = u32::from(h);
    let sign = (h & 0x8000) << 16;
    let a = h & 0x7fff;
    let normal = (a << 13) + (112 << 23);
    // An integer times 2^-24: both steps are exact, and no subnormal binary32 appears.
    let subnormal = (a as f32 * f32::from_bits(0x3380_0000)).to_bits();
    let bits = if a < 0x0400 { subnormal } else { normal };
    let bits = if a >= 0x7c00 { (a << 13) | INF } else { bits };
    f32::from_bits(sign | bits)
}
