// Fused multiply-add from 32-bit integer steps, for adapters whose `fma` rounds twice or flushes subnormals.
// Correct for every input. The method and why it is right: `fma_int` in src/exact/fma.rs, step by step the same.
// There are no branches: the adapters that need it run many invocations in one vector.

fn f_fma(fa: f32, fb: f32, fc: f32) -> f32 {
    let ab = bitcast<u32>(fa);
    let bb = bitcast<u32>(fb);
    let cb = bitcast<u32>(fc);
    let a = ab & 0x7fffffffu;
    let b = bb & 0x7fffffffu;
    let c = cb & 0x7fffffffu;
    let sp = (ab ^ bb) & 0x80000000u;
    let sc = cb & 0x80000000u;
    // x: steps above the smallest exponent. m: significand with its leading one, if any.
    let xa = max(a >> 23u, 1u) - 1u;
    let xb = max(b >> 23u, 1u) - 1u;
    let xc = i32(max(c >> 23u, 1u)) - 1;
    let ma = a - (xa << 23u);
    let mb = b - (xb << 23u);
    let mc = c - (u32(xc) << 23u);
    // The 48-bit product, shifted left by 14.
    let ah = ma >> 12u;
    let al = ma & 0xfffu;
    let bh = mb >> 12u;
    let bl = mb & 0xfffu;
    let pl = (ma * mb) << 14u;
    let ph = ((ah * bh) << 6u) + ((ah * bl + al * bh + ((al * bl) >> 12u)) >> 6u);
    let ch = mc << 6u;
    // Unit of the product minus unit of the addend, as powers of two.
    let p_zero = min(a, b) == 0u;
    let xp = select(i32(xa + xb), 0, p_zero);
    let t = xp - xc - 125;
    let p_stays = t >= 0;
    let xh = select(ch, ph, p_stays);
    let xl = select(0u, pl, p_stays);
    let uh = select(ph, ch, p_stays);
    let ul = select(pl, 0u, p_stays);
    // u >> s, lost bits into bit 0.
    let s = min(u32(abs(t)), 63u);
    let far = s >= 32u;
    let zh = select(uh, 0u, far);
    let zl = select(ul, uh, far);
    let n = s & 31u;
    let n1 = n ^ 31u;
    let lost = select(0u, ul, far) | ((zl << 1u) << n1);
    let yh = zh >> n;
    let yl = (zl >> n) | ((zh << 1u) << n1) | select(0u, 1u, lost != 0u);
    // x + y or x - y; its magnitude, and whether the difference was negative.
    let m = select(0u, 0xffffffffu, sp != sc);
    let l0 = xl + (yl ^ m);
    let l1 = l0 - m;
    let h1 = xh + (yh ^ m) + select(0u, 1u, l0 < xl) + select(0u, 1u, l1 < l0);
    let k = select(0u, 0xffffffffu, h1 >= 0x80000000u);
    let l2 = (l1 ^ k) - k;
    let h2 = (h1 ^ k) + select(0u, 1u, l2 < (l1 ^ k));
    // Leading bit to bit 31 of g, then to bit 29 with everything below it in the sticky bit 0.
    let low = h2 == 0u;
    let g0 = select(h2, l2, low);
    let r = select(l2, 0u, low);
    let zero = g0 == 0u;
    let z = countLeadingZeros(g0) & 31u;
    let g1 = (g0 << z) | ((r >> 1u) >> (z ^ 31u));
    let g = (g1 >> 2u) | select(0u, 1u, ((g1 & 3u) | (r << z)) != 0u);
    // f: exponent field minus one, before the limits.
    let w = max(xp - 312, xc - 187);
    let f = w + select(189, 157, low) - i32(z);
    // Round half to even. A subnormal result is shifted further; at 31 nothing is left to round up.
    let d = u32(min(6 + max(-f, 0), 31));
    let q = (g + (0xffffffffu >> (33u - d)) + ((g >> d) & 1u)) >> d;
    let packed = min((u32(clamp(f, 0, 254)) << 23u) + q, 0x7f800000u);
    let magnitude = select(packed, 0u, zero);
    let sx = select(sc, sp, p_stays);
    let sign = select(sx ^ (k & 0x80000000u), sp & sc, zero);
    // Infinities and NaN.
    let pm = max(a, b);
    let top = max(pm, c);
    let nan = top > 0x7f800000u || (pm == 0x7f800000u && (p_zero || (c == 0x7f800000u && sp != sc)));
    let infinity = select(cb, sp | 0x7f800000u, pm == 0x7f800000u);
    let special = select(infinity, 0x7fc00000u, nan);
    return bitcast<f32>(select(sign | magnitude, special, top >= 0x7f800000u));
}

fn v_fma(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(
        f_fma(a.x, b.x, c.x),
        f_fma(a.y, b.y, c.y),
        f_fma(a.z, b.z, c.z),
        f_fma(a.w, b.w, c.w),
    );
}
