//! Division.

use super::{INF, NAN, SIGN};

/// `a / b`, correctly rounded for every input, subnormal operands and results included.
///
/// This is IEEE division, which every CPU has; GPUs approximate it, so `wgsl/exact/math.wgsl` takes the integer
/// steps of [`div_int`], which give the same bits.
#[inline(always)]
pub fn div(a: f32, b: f32) -> f32 {
    a / b
}

/// `1 / x`, correctly rounded for every input.
#[inline(always)]
pub fn recip(x: f32) -> f32 {
    1.0 / x
}

/// [`div`] from 32-bit integer steps: the algorithm of the WGSL. Equal to [`div`] for every input; only tests and
/// probes call it.
///
/// Method: significands normalised to 24 bits, schoolbook long division in three digits of 8 bits (the remainder is
/// below the divisor, hence below 2^24, so `r << 8` fits), which gives 24 bits after the leading one; the remainder
/// only matters as zero or not.
#[inline]
pub fn div_int(a: f32, b: f32) -> f32 {
    let sign = (a.to_bits() ^ b.to_bits()) & SIGN;
    let (a, b) = (a.to_bits() & !SIGN, b.to_bits() & !SIGN);
    // a = ma * 2^(xa - 149), ma < 2^24, and the same for b.
    let (xa, xb) = ((a >> 23).max(1) - 1, (b >> 23).max(1) - 1);
    let (ma, mb) = (a - (xa << 23), b - (xb << 23));
    // Leading one to bit 23. A zero is none of the results below, but must not divide.
    let (na, nb) = ((ma | 1).leading_zeros() - 8, (mb | 1).leading_zeros() - 8);
    let (ma, mb) = (ma << na, (mb | u32::from(b == 0)) << nb);
    let less = u32::from(ma < mb);
    // Quotient in [1, 2) as 1.24 bits and a sticky bit; f is its exponent field minus one.
    let f = 126 + (xa as i32 - na as i32) - (xb as i32 - nb as i32) - less as i32;
    let r = ((ma << less) - mb) << 8;
    let d1 = r / mb;
    let r = (r - d1 * mb) << 8;
    let d2 = r / mb;
    let r = (r - d2 * mb) << 8;
    let d3 = r / mb;
    let r = r - d3 * mb;
    let g = (1 << 25) | (d1 << 17) | (d2 << 9) | (d3 << 1) | u32::from(r != 0);
    // Round half to even. A subnormal result is shifted further; from 27 on nothing is left to round up.
    let s = (2 + (-f).max(0)).min(31) as u32;
    let q = (g + (0xffff_ffff >> (33 - s)) + ((g >> s) & 1)) >> s;
    let packed = (((f.clamp(0, 254) as u32) << 23) + q).min(INF);
    let magnitude = if a == 0 || b == INF {
        0
    } else if a == INF || b == 0 {
        INF
    } else {
        packed
    };
    let nan = a > INF || b > INF || (a == b && (a == 0 || a == INF));
    f32::from_bits(if nan { NAN } else { sign | magnitude })
}
