// binary16 by integer steps: some drivers fuse a narrowing conversion with what comes before it, others round it
// wrongly. The functions of the same names in src/exact/f16.rs take the same steps.

// x rounded to binary16, half to even, in the low 16 bits; overflow gives infinity.
fn f32_to_f16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits & 0x80000000u) >> 16u;
    let a = bits & 0x7fffffffu;
    // Normal result: move the exponent (112 << 23), then round at bit 13. The carry runs into the exponent.
    let normal = (a - 0x38000000u + 0xfffu + ((a >> 13u) & 1u)) >> 13u;
    // Subnormal result: shift the significand to the unit 2^-24. From 25 on nothing is left to round up.
    let m = (a & 0x7fffffu) | 0x800000u;
    let s = min(126u - min(a >> 23u, 112u), 31u);
    let subnormal = (m + (0xffffffffu >> (33u - s)) + ((m >> s) & 1u)) >> s;
    var h = select(normal, subnormal, a < 0x38800000u);
    h = select(h, 0x7c00u, a >= 0x477ff000u);
    h = select(h, 0x7e00u, a > 0x7f800000u);
    return sign | h;
}

// Value of the binary16 number in the low 16 bits of h; exact.
fn f16_to_f32(h: u32) -> f32 {
    let sign = (h & 0x8000u) << 16u;
    let a = h & 0x7fffu;
    let normal = (a << 13u) + 0x38000000u;
    // An integer times 2^-24: both steps are exact, and no subnormal binary32 appears.
    let subnormal = bitcast<u32>(f_mul(f32(a), 0x1p-24));
    var bits = select(normal, subnormal, a < 0x400u);
    bits = select(bits, (a << 13u) | 0x7f800000u, a >= 0x7c00u);
    return bitcast<f32>(sign | bits);
}
