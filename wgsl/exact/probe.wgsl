// Conformance probe: one operation on `count` operand triples; the answers are known (src/exact/ops.rs).
//
// Shapes: a, b, c, out hold at least `count` words, floats as bits. One invocation a word, the dispatch has as many
// workgroups in x as fit and the rest in y.
// 0: parameters. 1, 2, 3: operands. 4: results.
// Accumulation order: that of the operation. Ties: none.

struct Params {
    // Always 0, but only the run knows.
    zero: u32,
    // Number of the operation.
    op: u32,
    count: u32,
    spare: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read> b: array<u32>;
@group(0) @binding(3) var<storage, read> c: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<u32>;

fn two_sum_low(x: f32, y: f32) -> f32 {
    let s = f_add(x, y);
    let t = f_sub(s, x);
    return f_add(f_sub(x, f_sub(s, t)), f_sub(y, t));
}

fn sum_products(x: f32, y: f32, z: f32) -> f32 {
    return f_add(f_add(f_add(f_mul(x, y), f_mul(y, z)), f_mul(z, x)), f_mul(x, x));
}

fn product_beside(x: f32, y: f32, z: f32) -> f32 {
    let p = f_mul(x, y);
    return f_sub(f_add(p, z), p);
}

// All operands are literals, so that a compiler that folds has to fold with one rounding.
fn fma_constant(row: u32) -> f32 {
    switch row {
        case 0u: {
            return f_fma(0x1.000002p0, 0x1.000002p0, -0x1.000004p0);
        }
        case 1u: {
            return f_fma(0x1.555556p-2, 3.0, -1.0);
        }
        case 2u: {
            return f_fma(0x1.000002p0, 0x1p-24, 1.0);
        }
        default: {
            return f_fma(0x1.921fb6p1, 0x1.5bf0a8p1, -0x1.114580p3);
        }
    }
}

fn lane_heads(x: f32, y: f32, z: f32, head: u32) -> f32 {
    let p = lane_product4_heads(
        vec4<f32>(x, y, z, x),
        vec4<f32>(y, z, x, x),
        vec4<f32>(z, x, x, y),
        vec4<f32>(x, x, y, z),
        vec4<f32>(x, y, z, x),
    );
    let low = select(p.x, p.y, (head & 1u) != 0u);
    let high = select(p.z, p.w, (head & 1u) != 0u);
    return select(low, high, (head & 2u) != 0u);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * 64u;
    if i >= params.count {
        return;
    }
    let u = a[i];
    let v = b[i];
    let x = bitcast<f32>(u);
    let y = bitcast<f32>(v);
    let z = bitcast<f32>(c[i]);
    var w = 0u;
    switch params.op {
        case 0u: {
            w = bitcast<u32>(f_add(x, y));
        }
        case 1u: {
            w = bitcast<u32>(f_sub(x, y));
        }
        case 2u: {
            w = bitcast<u32>(f_mul(x, y));
        }
        case 3u: {
            w = bitcast<u32>(f_add(f_mul(x, y), z));
        }
        case 4u: {
            w = bitcast<u32>(sum_products(x, y, z));
        }
        case 5u: {
            w = bitcast<u32>(two_sum_low(x, y));
        }
        case 6u: {
            w = bitcast<u32>(product_beside(x, y, z));
        }
        case 7u: {
            w = bitcast<u32>(f_fma(x, y, z));
        }
        case 8u: {
            w = bitcast<u32>(f_fma(x, y, f_neg(f_mul(x, y))));
        }
        case 9u: {
            w = bitcast<u32>(fma_constant(u & 3u));
        }
        case 10u: {
            w = bitcast<u32>(f_div(x, y));
        }
        case 11u: {
            w = bitcast<u32>(f_recip(x));
        }
        case 12u: {
            w = bitcast<u32>(f_rsqrt(x));
        }
        case 13u: {
            w = bitcast<u32>(f_exp(x));
        }
        case 14u: {
            w = bitcast<u32>(f_sigmoid(x));
        }
        case 15u: {
            w = bitcast<u32>(f_relu(x));
        }
        case 16u: {
            w = bitcast<u32>(f_rne(select(x, 0.0, (u & 0x7fffffffu) >= 0x4a800000u)));
        }
        case 17u: {
            w = f32_to_f16(x);
        }
        case 18u: {
            w = bitcast<u32>(f16_to_f32(u & 0xffffu));
        }
        case 19u: {
            w = order_key(x);
        }
        case 20u: {
            w = select(0u, 1u, is_nan(x));
        }
        case 21u: {
            w = bitcast<u32>(f32(u & 0xffffffu));
        }
        case 22u: {
            w = bitcast<u32>(i32(select(x, 0.0, (u & 0x7fffffffu) >= 0x4f000000u)));
        }
        case 23u: {
            w = bitcast<u32>((bitcast<i32>(u) >> 1u) / bitcast<i32>(v | 1u));
        }
        case 24u: {
            w = bitcast<u32>(dot4I8Packed(u, v));
        }
        case 25u: {
            w = bitcast<u32>(lane_product4(vec4<f32>(x, y, z, x), vec4<f32>(y, z, x, x)));
        }
        case 26u: {
            let k0 = vec4<f32>(x, y, z, x);
            let k1 = vec4<f32>(y, z, z, y);
            let q0 = vec4<f32>(y, z, x, x);
            let q1 = vec4<f32>(y, z, x, z);
            w = bitcast<u32>(lane_product8(k0, k1, q0, q1));
        }
        default: {
            w = bitcast<u32>(lane_heads(x, y, z, u & 3u));
        }
    }
    out[i] = w;
}
