//! Fused multiply-add.

use super::{INF, NAN, SIGN};

/// `a * b + c` rounded once.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

/// [`fma`] from 32-bit integer steps: the algorithm of `fma_soft.wgsl`, which serves adapters whose `fma` rounds
/// twice. Equal to [`fma`] for every input; only tests and probes call it.
///
/// Method: every finite value is `m * 2^(x - 149)` with an integer `m < 2^24` and `x >= 0`; subnormals need no
/// normalising. Product and addend are laid into one window of 64 bits: the product at bits 14..62, the addend at
/// bits 38..62, and whichever has the smaller unit is shifted right with its lost bits or-ed into bit 0. That is
/// enough, since bits are only lost far below the place where the sum is rounded:
/// * the addend, shifted by `t >= 0`, loses bits only when `t > 38` and is then below 2^24. A product that stays has
///   a normal factor, hence its leading bit at 37 or above, and the sum is rounded at bit 13 or above. (A zero
///   product has no leading bit: its unit is set to the smallest one, so that it never stays.)
/// * the product, shifted by `-t > 0`, loses bits only when `-t > 14` and is then below 2^47. A normal addend has
///   its leading bit at 61, and the sum is rounded at bit 37 or above; a subnormal or zero addend has its unit,
///   2^-149, at bit 38, and no result is rounded below that.
#[inline]
pub fn fma_int(a: f32, b: f32, c: f32) -> f32 {
    let (ab, bb, cb) = (a.to_bits(), b.to_bits(), c.to_bits());
    let (a, b, c) = (ab & !SIGN, bb & !SIGN, cb & !SIGN);
    let sp = (ab ^ bb) & SIGN;
    let sc = cb & SIGN;
    // x: steps above the smallest exponent. m: significand with its leading one, if any.
    let (xa, xb, xc) = ((a >> 23).max(1) - 1, (b >> 23).max(1) - 1, (c >> 23).max(1) - 1);
    let (ma, mb, mc) = (a - (xa << 23), b - (xb << 23), c - (xc << 23));
    // The 48-bit product, shifted left by 14.
    let (ah, al, bh, bl) = (ma >> 12, ma & 0xfff, mb >> 12, mb & 0xfff);
    let pl = ma.wrapping_mul(mb) << 14;
    let ph = ((ah * bh) << 6) + ((ah * bl + al * bh + ((al * bl) >> 12)) >> 6);
    let ch = mc << 6;
    // Unit of the product minus unit of the addend, as powers of two.
    let p_zero = a.min(b) == 0;
    let xp = if p_zero { 0 } else { (xa + xb) as i32 };
    let t = xp - xc as i32 - 125;
    let p_stays = t >= 0;
    let (xh, xl) = if p_stays { (ph, pl) } else { (ch, 0) };
    let (yh, yl) = if p_stays { (ch, 0) } else { (ph, pl) };
    // y >> s, lost bits into bit 0.
    let s = t.unsigned_abs().min(63);
    let far = s >= 32;
    let (zh, zl, lost) = if far { (0, yh, yl) } else { (yh, yl, 0) };
    let (n, n1) = (s & 31, !s & 31);
    let lost = lost | ((zl << 1) << n1);
    let yh = zh >> n;
    let yl = (zl >> n) | ((zh << 1) << n1) | u32::from(lost != 0);
    // x + y or x - y; its magnitude, and whether the difference was negative.
    let m = if sp != sc { !0 } else { 0 };
    let l0 = xl.wrapping_add(yl ^ m);
    let l1 = l0.wrapping_sub(m);
    let h1 = xh.wrapping_add(yh ^ m).wrapping_add(u32::from(l0 < xl)).wrapping_add(u32::from(l1 < l0));
    let m = if h1 >= SIGN { !0 } else { 0 };
    let l2 = (l1 ^ m).wrapping_sub(m);
    let h2 = (h1 ^ m).wrapping_add(u32::from(l2 < (l1 ^ m)));
    // Leading bit to bit 31 of g, then to bit 29 with everything below it in the sticky bit 0.
    let low = h2 == 0;
    let (g, r) = if low { (l2, 0) } else { (h2, l2) };
    let zero = g == 0;
    let n = g.leading_zeros() & 31;
    let g = (g << n) | ((r >> 1) >> (n ^ 31));
    let g = (g >> 2) | u32::from(((g & 3) | (r << n)) != 0);
    // f: exponent field minus one, before the limits.
    let w = (xp - 312).max(xc as i32 - 187);
    let f = w + if low { 157 } else { 189 } - n as i32;
    // Round half to even. A subnormal result is shifted further; at 31 nothing is left to round up.
    let s = (6 + (-f).max(0)).min(31) as u32;
    let q = (g + (0xffff_ffff >> (33 - s)) + ((g >> s) & 1)) >> s;
    let packed = ((f.clamp(0, 254) as u32) << 23) + q;
    let magnitude = if zero { 0 } else { packed.min(INF) };
    let sx = if p_stays { sp } else { sc };
    let sign = if zero { sp & sc } else { sx ^ (m & SIGN) };
    // Infinities and NaN.
    let pm = a.max(b);
    let top = pm.max(c);
    let nan = top > INF || (pm == INF && (p_zero || (c == INF && sp != sc)));
    let infinity = if pm == INF { sp | INF } else { cb };
    let special = if nan { NAN } else { infinity };
    f32::from_bits(if top >= INF { special } else { sign | magnitude })
}
