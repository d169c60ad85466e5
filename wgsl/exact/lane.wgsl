// Sum of the products of consecutive values of one lane: k1*q1, then fused k0*q0, k2*q2, k3*q3, k4*q4, ... k7*q7.

fn lane_product4(k: vec4<f32>, q: vec4<f32>) -> f32 {
    var p = f_mul(k.y, q.y);
    p = f_fma(k.x, q.x, p);
    p = f_fma(k.z, q.z, p);
    return f_fma(k.w, q.w, p);
}

fn lane_product8(k0: vec4<f32>, k1: vec4<f32>, q0: vec4<f32>, q1: vec4<f32>) -> f32 {
    var p = lane_product4(k0, q0);
    p = f_fma(k1.x, q1.x, p);
    p = f_fma(k1.y, q1.y, p);
    p = f_fma(k1.z, q1.z, p);
    return f_fma(k1.w, q1.w, p);
}

// lane_product4 for four heads that share k: q0..q3 hold one dimension each, one head a component.
fn lane_product4_heads(
    k: vec4<f32>,
    q0: vec4<f32>,
    q1: vec4<f32>,
    q2: vec4<f32>,
    q3: vec4<f32>,
) -> vec4<f32> {
    var p = v_mul(vec4<f32>(k.y), q1);
    p = v_fma(vec4<f32>(k.x), q0, p);
    p = v_fma(vec4<f32>(k.z), q2, p);
    return v_fma(vec4<f32>(k.w), q3, p);
}
