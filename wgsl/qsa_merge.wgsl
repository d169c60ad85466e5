// Merge: the chunks of one head of one row become its attention output, optionally gated.
//
// Shapes: partials [rows][chunks][q_heads][D + 2], gates [rows][q_heads][D], out [rows][q_heads][D] as f32 or f16.
// binding 0  uniform  Params
// binding 1  uniform  step records, one a row
// binding 2  read     partials
// binding 3  read     gates (when params.gated)
// binding 4  write    out: f32 words, or two f16 a word
// workgroups: x = query head, y = row
//
// Order: M by order key; L and out serial over the chunks, fma from 0; chunks with l = 0 are skipped; out / L rounded
// once, 0 when L = 0; then times sigmoid(gate).

override HEAD_DIM: u32 = 256;
override PAIRS: u32 = HEAD_DIM / 2u;

struct Params {
    zero: u32,           // the guarded lowering's run-time zero
    q_heads: u32,
    partial_stride: u32, // floats between rows of the partials
    gated: u32,          // 1: multiply by sigmoid(gate)
    half_out: u32,       // 1: write f16
    max_chunks: u32,
    spare0: u32,
    spare1: u32,
}

struct Step { pos: u32, n_kv: u32, n_bid: u32, width: u32 }

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> steps: array<Step, 16>;
@group(0) @binding(2) var<storage, read> partials: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> gates: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<u32>;

const THREADS = 128u;
const SKIP = -1.0; // factor of an empty chunk; no exponential is negative

var<workgroup> maxima: array<f32, 1024>;
var<workgroup> sums: array<f32, 1024>;
var<workgroup> factors: array<f32, 1024>;

// By its bits: `!=` is false for a NaN here, and a head that overflowed would come out as zeros.
fn is_zero(x: f32) -> bool {
    return (bitcast<u32>(x) << 1u) == 0u;
}

fn rescaled(value: vec2<f32>, factor: f32, sum: vec2<f32>) -> vec2<f32> {
    let next = vec2<f32>(f_fma(value.x, factor, sum.x), f_fma(value.y, factor, sum.y));
    return select(next, sum, factor < 0.0);
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let head = group.x;
    let row = group.y;
    let chunks = min((steps[row].width + 63u) / 64u, params.max_chunks);
    if (chunks == 0u) {
        return;
    }
    let chunk_pairs = params.q_heads * (PAIRS + 1u);
    let base = row * params.partial_stride / 2u + head * (PAIRS + 1u);

    for (var k = thread; k < chunks; k += THREADS) {
        let ml = partials[base + k * chunk_pairs + PAIRS];
        maxima[k] = ml.x;
        sums[k] = ml.y;
    }
    workgroupBarrier();
    var most = 0u;
    for (var k = 0u; k < chunks; k++) {
        most = max(most, select(0u, order_key(maxima[k]), !is_zero(sums[k])));
    }
    // The value behind an order key; +0 where the order has one zero.
    let m = bitcast<f32>(select(~most, most ^ 0x80000000u, (most & 0x80000000u) != 0u));
    for (var k = thread; k < chunks; k += THREADS) {
        factors[k] = select(SKIP, f_exp(f_sub(maxima[k], m)), !is_zero(sums[k]));
    }
    workgroupBarrier();

    var l = 0.0;
    for (var k = 0u; k < chunks; k++) {
        l = select(f_fma(sums[k], factors[k], l), l, factors[k] < 0.0);
    }
    if (thread >= PAIRS) {
        return;
    }
    var sum = vec2<f32>(0.0);
    var k = 0u;
    let from_ = base + thread;
    for (; k + 8u <= chunks; k += 8u) {
        let p = from_ + k * chunk_pairs;
        let v0 = partials[p];
        let v1 = partials[p + chunk_pairs];
        let v2 = partials[p + 2u * chunk_pairs];
        let v3 = partials[p + 3u * chunk_pairs];
        let v4 = partials[p + 4u * chunk_pairs];
        let v5 = partials[p + 5u * chunk_pairs];
        let v6 = partials[p + 6u * chunk_pairs];
        let v7 = partials[p + 7u * chunk_pairs];
        sum = rescaled(v0, factors[k], sum);
        sum = rescaled(v1, factors[k + 1u], sum);
        sum = rescaled(v2, factors[k + 2u], sum);
        sum = rescaled(v3, factors[k + 3u], sum);
        sum = rescaled(v4, factors[k + 4u], sum);
        sum = rescaled(v5, factors[k + 5u], sum);
        sum = rescaled(v6, factors[k + 6u], sum);
        sum = rescaled(v7, factors[k + 7u], sum);
    }
    for (; k < chunks; k++) {
        sum = rescaled(partials[from_ + k * chunk_pairs], factors[k], sum);
    }

    var y = vec2<f32>(0.0);
    if (!is_zero(l)) {
        y = vec2<f32>(f_div(sum.x, l), f_div(sum.y, l));
    }
    let at = (row * params.q_heads + head) * PAIRS + thread;
    if (params.gated == 1u) {
        let g = gates[at];
        y = vec2<f32>(f_mul(y.x, f_sigmoid(g.x)), f_mul(y.y, f_sigmoid(g.y)));
    }
    if (params.half_out == 1u) {
        out[at] = f32_to_f16(y.x) | (f32_to_f16(y.y) << 16u);
    } else {
        out[at * 2u] = bitcast<u32>(y.x);
        out[at * 2u + 1u] = bitcast<u32>(y.y);
    }
}
