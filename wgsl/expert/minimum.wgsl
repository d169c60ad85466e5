// For formats with a minimum: 32 values a call; `minimum_of` says what goes with it.

const CALL_VALUES = 32u;

struct Call {
    low: vec4<u32>,    // codes 0 to 15
    high: vec4<u32>,   // codes 16 to 31
    scale: f32,
    scales: vec2<i32>, // of the two halves
    minimum: f32,
    factor: f32,       // on the sum of the codes
}

var<workgroup> staged_extra: array<f32, STAGED_BLOCKS>;

fn stage_extra(at: u32, low: vec4<u32>, high: vec4<u32>, sum: f32) {
    staged_extra[at] = extra(low, high, sum);
}

// The sum of the codes; exact.
fn code_sum(low: vec4<u32>, high: vec4<u32>) -> f32 {
    let ones = vec4<u32>(0x01010101u);
    return f32(dot4(low, ones) + dot4(high, ones));
}

fn accumulate(call: Call, e: u32, k: u32, sum: f32) -> f32 {
    let a = dot4(call.low, staged[2u * e * X_BLOCKS + k]);
    let b = dot4(call.high, staged[(2u * e + 1u) * X_BLOCKS + k]);
    let d = staged_scale[e * X_BLOCKS + k];
    let more = f_fma(f_mul(call.scale, d), f32(integer(call.scales, a, b)), sum);
    return minimum_of(call, d, staged_extra[e * X_BLOCKS + k], more);
}
