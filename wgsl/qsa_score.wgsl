// Block scores: two rows of the window against one block a thread.
//
// Shapes: keys [32 lanes][stride] of 4 dims (the crate's own layout; the dead key is a column too), queries
// [rows][4 heads][32 lanes] of 4 dims, scores [rows][score_stride].
// binding 0  uniform  Params
// binding 1  uniform  step records, one a row
// binding 2  read     keys
// binding 3  read     queries
// binding 4  write    scores
// workgroups: x = 64 columns, y = pair of rows
//
// Order: lane product, then the tree over 32 lanes, walked by one thread: lanes in bit-reversed order, one partial sum
// for each level (a binary counter). The heads' positive parts are added in head order; the incomplete block gets +1e9.

struct Params {
    zero: u32,         // the guarded lowering's run-time zero
    first: u32,        // first block of this piece of the keys
    dead: u32,         // 1: column 0 is the dead key's, and blocks begin at column 1
    columns: u32,      // columns that hold a key
    stride: u32,       // columns in memory
    score_stride: u32, // floats between rows of the scores
    heads: u32,        // indexer heads, 1 to 4
    spare: u32,
}

struct Step { pos: u32, n_kv: u32, n_bid: u32, width: u32 }

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> steps: array<Step, 16>;
@group(0) @binding(2) var<storage, read> keys: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> queries: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> scores: array<f32>;

// [lane][row of the pair][head]
var<workgroup> query: array<vec4<f32>, 256>;

// The four heads' lane products with one lane of a key.
fn heads(k: vec4<f32>, at: u32) -> vec4<f32> {
    return vec4<f32>(
        lane_product4(k, query[at]),
        lane_product4(k, query[at + 1u]),
        lane_product4(k, query[at + 2u]),
        lane_product4(k, query[at + 3u]),
    );
}

fn four_lanes(k0: vec4<f32>, k1: vec4<f32>, k2: vec4<f32>, k3: vec4<f32>, at: u32) -> vec4<f32> {
    return v_add(
        v_add(heads(k0, at), heads(k1, at + 128u)),
        v_add(heads(k2, at + 64u), heads(k3, at + 192u)),
    );
}

fn finish(row: u32, column: u32, d: vec4<f32>) {
    let step = steps[row];
    if (step.n_kv == 0u) {
        return;
    }
    var s = f_add(f_add(f_add(f_relu(d.x), f_relu(d.y)), f_relu(d.z)), f_relu(d.w));
    var block = params.first + column - params.dead;
    if (column < params.dead) {
        block = step.n_bid;
        if ((step.n_kv & 3u) != 0u) {
            s = f_add(s, 1e9);
        }
    } else if (block >= step.n_bid) {
        return;
    }
    if (block < params.score_stride) {
        scores[row * params.score_stride + block] = s;
    }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y * 2u;
    let two = steps[row + 1u].n_kv != 0u;
    for (var i = thread; i < 256u; i += 64u) {
        let lane = i / 8u;
        let r = row + (i / 4u) % 2u;
        let head = i % 4u;
        var q = vec4<f32>(0.0);
        if (head < params.heads && steps[r].n_kv != 0u) {
            q = queries[(r * params.heads + head) * 32u + lane];
        }
        query[i] = q;
    }
    workgroupBarrier();
    let column = group.x * 64u + thread;
    if (column >= params.columns) {
        return;
    }

    var x0: vec4<f32>;
    var x1: vec4<f32>;
    var level2_0: vec4<f32>;
    var level2_1: vec4<f32>;
    var level3_0: vec4<f32>;
    var level3_1: vec4<f32>;
    var level4_0: vec4<f32>;
    var level4_1: vec4<f32>;
    for (var m = 0u; m < 8u; m++) {
        let lane = reverseBits(m) >> 29u;
        let k0 = keys[lane * params.stride + column];
        let k1 = keys[(lane + 16u) * params.stride + column];
        let k2 = keys[(lane + 8u) * params.stride + column];
        let k3 = keys[(lane + 24u) * params.stride + column];
        x0 = four_lanes(k0, k1, k2, k3, lane * 8u);
        if (two) {
            x1 = four_lanes(k0, k1, k2, k3, lane * 8u + 4u);
        }
        if ((m & 1u) == 0u) {
            level2_0 = x0;
            level2_1 = x1;
        } else {
            x0 = v_add(level2_0, x0);
            x1 = v_add(level2_1, x1);
            if ((m & 2u) == 0u) {
                level3_0 = x0;
                level3_1 = x1;
            } else {
                x0 = v_add(level3_0, x0);
                x1 = v_add(level3_1, x1);
                if ((m & 4u) == 0u) {
                    level4_0 = x0;
                    level4_1 = x1;
                } else {
                    x0 = v_add(level4_0, x0);
                    x1 = v_add(level4_1, x1);
                }
            }
        }
    }
    finish(row, column, x0);
    if (two) {
        finish(row + 1u, column, x1);
    }
}
