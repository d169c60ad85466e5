// Attention of one row over 64 selected cells, for up to 12 query heads that share a KV head.
//
// Shapes: ids [rows][id_stride], page table [pages], queries [rows][q_heads][D], keys and values [slot][kv_heads][D] in
// the format of the piece in front of this one (key_scales_of, load_key, key_values, and the same for values), partials [rows][chunks][q_heads][D + 2].
// binding 0  uniform  Params
// binding 1  uniform  step records, one a row
// binding 2  read     cell ids
// binding 3  read     page table
// binding 4  read     queries
// binding 5  read     keys          binding 6  read  key scales (int8)
// binding 7  read     values        binding 8  read  value scales (int8)
// binding 9  write    partials
// workgroups: x = chunk, y = row, z = kv head * tiles + tile of 12 heads
//
// Order: score = tree over 32 lanes of lane products of 8 (D = 256) or 4 (D = 128), then times the scale; the maximum
// by order key; l = tree over 32 lanes of p[c] + p[c + 32]; accumulators serial over the cells, fma from 0.
// A cell that does not exist is not read.

override HEAD_DIM: u32 = 256;
override QUADS: u32 = HEAD_DIM / 4u;

struct Params {
    zero: u32,           // the guarded lowering's run-time zero
    group: u32,          // query heads of a KV head
    kv_heads: u32,
    tiles: u32,          // tiles of 12 heads that cover a group
    page_size: u32,
    slots: u32,          // cells in the KV arrays
    id_stride: u32,
    partial_stride: u32, // floats between rows of the partials
    gathered: u32,       // 1: the KV arrays hold the selected cells in order, [rows][id_stride]
    scale: f32,          // the reciprocal of the root of D
    spare0: u32,
    spare1: u32,
}

struct Step { pos: u32, n_kv: u32, n_bid: u32, width: u32 }

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> steps: array<Step, 16>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read> page_table: array<u32>;
@group(0) @binding(4) var<storage, read> queries: array<vec4<f32>>;
@group(0) @binding(9) var<storage, read_write> partials: array<vec2<f32>>;

const THREADS = 192u;
const CHUNK = 64u;
const LOWEST = 0xff800000u; // -inf, from which maxima start; a NaN never replaces it

// Queries [12][QUADS] until the scores are there, then what the trees over lanes and cells still have to add, then the
// cells' value scales.
var<workgroup> stage: array<vec4<f32>, 768>;
// The cells' key scales until the scores are there, then [64 cells][3] vectors of 4 heads.
var<workgroup> weights: array<vec4<f32>, 192>;
// A chunk's cells as rows of the KV arrays.
var<workgroup> rows: array<u32, 64>;

// Four heads' sums for four cells.
struct Cells { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn add_cells(x: Cells, y: Cells) -> Cells {
    return Cells(v_add(x.a, y.a), v_add(x.b, y.b), v_add(x.c, y.c), v_add(x.d, y.d));
}

// One lane's part of the queries of four heads.
struct Queries { a: Eight, b: Eight, c: Eight, d: Eight }

fn load_query(head: u32, lane: u32) -> Eight {
    if (HEAD_DIM == 256u) {
        let at = head * QUADS + lane * 2u;
        return Eight(stage[at], stage[at + 1u]);
    }
    return Eight(stage[head * QUADS + lane], vec4<f32>(0.0));
}

fn lane_product(k: Eight, q: Eight) -> f32 {
    if (HEAD_DIM == 256u) {
        return lane_product8(k.lo, k.hi, q.lo, q.hi);
    }
    return lane_product4(k.lo, q.lo);
}

fn lane_products(k: Eight, q: Queries) -> vec4<f32> {
    return vec4<f32>(lane_product(k, q.a), lane_product(k, q.b), lane_product(k, q.c), lane_product(k, q.d));
}

// Four cells' keys for one thread, as they lie in memory: cells `cell`, + 16, + 32, + 48.
struct FourKeys { a: RawKey, b: RawKey, c: RawKey, d: RawKey }

fn load_keys(cell: u32, lane: u32) -> FourKeys {
    return FourKeys(
        load_key(rows[cell], lane),
        load_key(rows[cell + 16u], lane),
        load_key(rows[cell + 32u], lane),
        load_key(rows[cell + 48u], lane),
    );
}

// The greater of two scores by order key; the total order makes the result independent of the order of comparisons.
fn greater1(x: f32, y: f32) -> f32 {
    return select(x, y, order_key(y) > order_key(x));
}

fn greater(x: vec4<f32>, y: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(greater1(x.x, y.x), greater1(x.y, y.y), greater1(x.z, y.z), greater1(x.w, y.w));
}

// -0 and +0 are one value of the order; +0 is what is kept.
fn positive_zero(x: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(x);
    return bitcast<vec4<f32>>(select(bits, vec4<u32>(0u), bits == vec4<u32>(0x80000000u)));
}

// The lane that a thread visits as its `leaf`-th of 8: residue + 4 * (the three bits of `leaf` reversed).
fn lane_of(residue: u32, leaf: u32) -> u32 {
    return residue + 4u * (reverseBits(leaf) >> 29u);
}

// Four cells' values for one thread, as they lie in memory.
struct FourValues { a: RawValue, b: RawValue, c: RawValue, d: RawValue }

fn load_values(c: u32, quad: u32) -> FourValues {
    let at = min(c, CHUNK - 4u);
    return FourValues(
        load_value(rows[at], quad),
        load_value(rows[at + 1u], quad),
        load_value(rows[at + 2u], quad),
        load_value(rows[at + 3u], quad),
    );
}

// 4 dims of 6 heads: the four of one vector of weights, and two of the middle one.
struct Sums { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, e: vec4<f32>, f: vec4<f32> }

// One cell's contribution.
fn accumulate(acc: Sums, c: u32, half: u32, v: vec4<f32>) -> Sums {
    let p = weights[c * 3u + half * 2u];
    let middle = weights[c * 3u + 1u];
    let pair = select(middle.xy, middle.zw, half == 1u);
    return Sums(
        v_fma(vec4<f32>(p.x), v, acc.a),
        v_fma(vec4<f32>(p.y), v, acc.b),
        v_fma(vec4<f32>(p.z), v, acc.c),
        v_fma(vec4<f32>(p.w), v, acc.d),
        v_fma(vec4<f32>(pair.x), v, acc.e),
        v_fma(vec4<f32>(pair.y), v, acc.f),
    );
}

@compute @workgroup_size(192)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let chunk = group.x;
    let row = group.y;
    let kv_head = group.z / params.tiles;
    let first_head = (group.z % params.tiles) * 12u;
    let step = steps[row];
    if (chunk * CHUNK >= step.width) {
        return;
    }
    let cells = min(CHUNK, step.width - chunk * CHUNK);
    let heads = min(12u, params.group - first_head);
    let head0 = kv_head * params.group + first_head;

    var value_scales: vec4<f32>;
    if (thread < CHUNK) {
        // The rows of cells that do not exist are those of the last one that does: fetched ahead, never used.
        let entry = row * params.id_stride + chunk * CHUNK + min(thread, cells - 1u);
        var slot = entry;
        if (params.gathered == 0u) {
            let cell = min(ids[entry], step.n_kv - 1u);
            slot = page_table[cell / params.page_size] * params.page_size + cell % params.page_size;
        }
        let kv_row = min(slot, params.slots - 1u) * params.kv_heads + kv_head;
        rows[thread] = kv_row;
        weights[thread] = key_scales_of(kv_row);
        value_scales = value_scales_of(kv_row);
    }
    for (var i = thread; i < 12u * QUADS; i += THREADS) {
        let head = i / QUADS;
        if (head < heads) {
            stage[i] = queries[((row * params.kv_heads * params.group) + head0 + head) * QUADS + i % QUADS];
        } else {
            stage[i] = vec4<f32>(0.0);
        }
    }
    workgroupBarrier();

    // A thread takes 4 cells and 4 heads. Of four neighbouring threads, thread r walks lanes r, r+4, r+8, ... in
    // bit-reversed order, which is the tree over distances 16, 8 and 4; distances 2 and 1 go through workgroup memory.
    let four = thread / 64u;
    let first_cell = thread % 64u / 4u;
    let residue = thread % 4u;
    var sum: Cells;
    var level0: Cells;
    var level1: Cells;
    var level2: Cells;
    for (var leaf = 0u; leaf < 8u; leaf++) {
        let lane = lane_of(residue, leaf);
        let k = load_keys(first_cell, lane);
        let q = Queries(
            load_query(four * 4u, lane),
            load_query(four * 4u + 1u, lane),
            load_query(four * 4u + 2u, lane),
            load_query(four * 4u + 3u, lane),
        );
        let scale = scale_of(lane);
        sum = Cells(
            lane_products(key_values(k.a, weights[first_cell][scale]), q),
            lane_products(key_values(k.b, weights[first_cell + 16u][scale]), q),
            lane_products(key_values(k.c, weights[first_cell + 32u][scale]), q),
            lane_products(key_values(k.d, weights[first_cell + 48u][scale]), q),
        );
        if ((leaf & 1u) == 0u) {
            level0 = sum;
            continue;
        }
        sum = add_cells(level0, sum);
        if ((leaf & 2u) == 0u) {
            level1 = sum;
            continue;
        }
        sum = add_cells(level1, sum);
        if ((leaf & 4u) == 0u) {
            level2 = sum;
            continue;
        }
        sum = add_cells(level2, sum);
    }
    workgroupBarrier();
    let to = four * 256u + first_cell * 4u + residue;
    stage[to] = sum.a;
    stage[to + 64u] = sum.b;
    stage[to + 128u] = sum.c;
    stage[to + 192u] = sum.d;
    workgroupBarrier();

    // From here on thread 3*c + f owns cell c of heads 4*f .. 4*f+3.
    let exists = thread / 3u < cells;
    // By way of a variable: WGSL has no constant for -inf, and Tint says so.
    var lowest = LOWEST;
    var score = vec4<f32>(bitcast<f32>(lowest));
    if (exists) {
        let at = (thread % 3u) * 256u + thread / 3u * 4u;
        let s = v_add(v_add(stage[at], stage[at + 2u]), v_add(stage[at + 1u], stage[at + 3u]));
        score = v_mul(s, vec4<f32>(params.scale));
    }
    workgroupBarrier();
    stage[thread] = greater(vec4<f32>(bitcast<f32>(lowest)), score);
    for (var n = 96u; n >= 3u; n /= 2u) {
        workgroupBarrier();
        if (thread < n) {
            stage[thread] = greater(stage[thread], stage[thread + n]);
        }
    }
    workgroupBarrier();
    let most = positive_zero(stage[thread % 3u]);
    let own_most = positive_zero(stage[thread / 4u % 3u])[thread % 4u];
    workgroupBarrier();

    // A cell that does not exist weighs nothing.
    var weight = vec4<f32>(0.0);
    if (exists) {
        let d = v_sub(score, most);
        weight = vec4<f32>(f_exp(d.x), f_exp(d.y), f_exp(d.z), f_exp(d.w));
    }
    weights[thread] = weight;
    stage[thread] = weight;
    // The first step adds p[c] + p[c + 32], the others are the tree over 32 lanes.
    for (var n = 96u; n >= 3u; n /= 2u) {
        workgroupBarrier();
        if (thread < n) {
            stage[thread] = v_add(stage[thread], stage[thread + n]);
        }
    }
    workgroupBarrier();

    let out_row = (row * params.partial_stride + (chunk * params.kv_heads * params.group + head0) * (HEAD_DIM + 2u)) / 2u;
    let head_pairs = HEAD_DIM / 2u + 1u;
    if (thread < heads) {
        let l = stage[thread / 4u][thread % 4u];
        partials[out_row + thread * head_pairs + HEAD_DIM / 2u] = vec2<f32>(own_most, l);
    }

    workgroupBarrier();
    if (thread < CHUNK) {
        stage[thread] = value_scales;
    }
    workgroupBarrier();

    // Accumulators: a thread owns 4 dims of 6 heads. Values are fetched two times four cells ahead.
    let quad = thread % QUADS;
    let half = thread / QUADS;
    if (half >= 2u) {
        return;
    }
    let group_of_64 = quad / 16u;
    var acc: Sums;
    var next = load_values(0u, quad);
    var after = load_values(4u, quad);
    var c = 0u;
    for (; c + 4u <= cells; c += 4u) {
        let now = next;
        next = after;
        after = load_values(c + 8u, quad);
        acc = accumulate(acc, c, half, value_of(now.a, stage[c][group_of_64]));
        acc = accumulate(acc, c + 1u, half, value_of(now.b, stage[c + 1u][group_of_64]));
        acc = accumulate(acc, c + 2u, half, value_of(now.c, stage[c + 2u][group_of_64]));
        acc = accumulate(acc, c + 3u, half, value_of(now.d, stage[c + 3u][group_of_64]));
    }
    for (; c < cells; c++) {
        acc = accumulate(acc, c, half, value_of(load_value(rows[c], quad), stage[c][group_of_64]));
    }
    write_head(out_row, head_pairs, half * 8u, heads, quad, acc.a);
    write_head(out_row, head_pairs, half * 8u + 1u, heads, quad, acc.b);
    write_head(out_row, head_pairs, half * 8u + 2u, heads, quad, acc.c);
    write_head(out_row, head_pairs, half * 8u + 3u, heads, quad, acc.d);
    write_head(out_row, head_pairs, 4u + half * 2u, heads, quad, acc.e);
    write_head(out_row, head_pairs, 5u + half * 2u, heads, quad, acc.f);
}

fn write_head(out_row: u32, head_pairs: u32, head: u32, heads: u32, quad: u32, value: vec4<f32>) {
    if (head < heads) {
        let at = out_row + head * head_pairs + quad * 2u;
        partials[at] = value.xy;
        partials[at + 1u] = value.zw;
    }
}
