// Add, subtract, multiply: each rounded once. For devices that are held to the order by other means.

fn f_add(a: f32, b: f32) -> f32 {
    return a + b;
}

fn f_sub(a: f32, b: f32) -> f32 {
    return a - b;
}

fn f_mul(a: f32, b: f32) -> f32 {
    return a * b;
}

fn v_add(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return a + b;
}

fn v_sub(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return a - b;
}

fn v_mul(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return a * b;
}
