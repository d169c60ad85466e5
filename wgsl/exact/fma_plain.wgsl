// Fused multiply-add, for adapters whose `fma` rounds once.

fn f_fma(a: f32, b: f32, c: f32) -> f32 {
    return fma(a, b, c);
}

fn v_fma(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>) -> vec4<f32> {
    return fma(a, b, c);
}
