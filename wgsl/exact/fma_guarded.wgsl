// Fused multiply-add, for adapters whose `fma` rounds once. The result is XORed with a zero that only the run knows
// (`params.zero`), so that a compiler cannot simplify across it.

fn f_fma(a: f32, b: f32, c: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(fma(a, b, c)) ^ params.zero);
}

fn v_fma(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(fma(a, b, c)) ^ vec4<u32>(params.zero));
}
