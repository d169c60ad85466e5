// A block of 32 values as codes: one thread a value, eight blocks a workgroup of 256.
//
// Order: the largest magnitude over 127; codes are value over scale, rounded half away from zero; the sum is added at
// distance 16, 8, 4, 2, 1. Scale and sum are kept as f16, clamped to its range.

var<workgroup> largest: array<u32, 256>;
var<workgroup> partial: array<f32, 256>;

// Half away from zero, at most 127 (also for NaN), as a signed byte.
fn rounded(quotient: f32) -> u32 {
    let bits = bitcast<u32>(quotient);
    let size = min(bits & 0x7fffffffu, 0x42fe0000u);
    let magnitude = bitcast<f32>(size);
    let whole = i32(magnitude);
    let code = whole + select(0, 1, f_sub(magnitude, f32(whole)) >= 0.5);
    return u32(select(code, -code, bits >= 0x80000000u)) & 0xffu;
}

// f16 of a value held to +-65504, as the binary32 number that it is.
fn kept(x: f32) -> f32 {
    let most = select(x, 65504.0, x > 65504.0);
    return f16_to_f32(f32_to_f16(select(most, -65504.0, most < -65504.0)));
}

// Writes block `block` with the values of the 32 threads that `thread` belongs to. All threads of the workgroup call it.
fn write_block(thread: u32, value: f32, block: u32, live: bool) {
    let lane = thread & 31u;
    largest[thread] = bitcast<u32>(value) & 0x7fffffffu;
    partial[thread] = value;
    for (var n = 16u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (lane < n) {
            largest[thread] = max(largest[thread], largest[thread + n]);
            partial[thread] = f_add(partial[thread], partial[thread + n]);
        }
    }
    workgroupBarrier();
    let first = thread & ~31u;
    let d = f_div(bitcast<f32>(largest[first]), 127.0);
    let sum = partial[first];
    let code = select(rounded(f_div(value, d)), 0u, (bitcast<u32>(d) << 1u) == 0u);
    workgroupBarrier();
    largest[thread] = code;
    workgroupBarrier();
    if (live && lane < 8u) {
        let at = first + 4u * lane;
        q_codes[8u * block + lane] =
            largest[at] | (largest[at + 1u] << 8u) | (largest[at + 2u] << 16u) | (largest[at + 3u] << 24u);
    }
    if (live && lane == 0u) {
        q_scales[block] = vec2<f32>(kept(d), kept(sum));
    }
}
