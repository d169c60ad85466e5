// Add, subtract, multiply: each rounded once. The result is XORed with a zero that only the run knows
// (`params.zero`), so that a compiler can neither contract nor re-associate nor simplify across it.

fn f_add(a: f32, b: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(a + b) ^ params.zero);
}

fn f_sub(a: f32, b: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(a - b) ^ params.zero);
}

fn f_mul(a: f32, b: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(a * b) ^ params.zero);
}

fn v_add(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(a + b) ^ vec4<u32>(params.zero));
}

fn v_sub(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(a - b) ^ vec4<u32>(params.zero));
}

fn v_mul(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(a * b) ^ vec4<u32>(params.zero));
}
