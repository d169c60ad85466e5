fn f_add(a: f32, b: f32) -> f32 { return a + b; }
fn f_sub(a: f32, b: f32) -> f32 { return a - b; }
fn f_mul(a: f32, b: f32) -> f32 { return a * b; }
