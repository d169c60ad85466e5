fn keep(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ params.zero); }
fn f_add(a: f32, b: f32) -> f32 { return keep(a + b); }
fn f_sub(a: f32, b: f32) -> f32 { return keep(a - b); }
fn f_mul(a: f32, b: f32) -> f32 { return keep(a * b); }
