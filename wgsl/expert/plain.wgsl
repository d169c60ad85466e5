// For formats without a minimum: 32 values a call, nothing but the scale is staged beside the codes.

const CALL_VALUES = 32u;

struct Call {
    low: vec4<u32>,    // codes 0 to 15
    high: vec4<u32>,   // codes 16 to 31
    scale: f32,
    scales: vec2<i32>, // of the two halves
}

fn stage_extra(at: u32, low: vec4<u32>, high: vec4<u32>, sum: f32) {}

// The call's term added to the sum of an entry.
fn accumulate(call: Call, e: u32, k: u32, sum: f32) -> f32 {
    let a = dot4(call.low, staged[2u * e * X_BLOCKS + k]);
    let b = dot4(call.high, staged[(2u * e + 1u) * X_BLOCKS + k]);
    let d = f_mul(call.scale, staged_scale[e * X_BLOCKS + k]);
    return f_fma(d, f32(integer(call.scales, a, b)), sum);
}
