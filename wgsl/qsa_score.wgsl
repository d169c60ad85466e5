// Block scores: a thread takes two blocks and two rows.
//
// Shapes: keys [32 lanes][stride] of 4 dims (the crate's own layout; the dead key is a column too), queries
// [rows][heads][32 lanes] of 4 dims, scores [rows][score_stride].
// binding 0  uniform  Params
// binding 1  uniform  step records, one a row
// binding 2  read     keys
// binding 3  read     queries
// binding 4  write    scores
// workgroups: x = 128 columns, y = ROWS rows
//
// Order: lane product, then the tree over 32 lanes, both inside one thread (`dots`, in one of the pieces of
// wgsl/score). The heads' positive parts are added in head order; the incomplete block gets +1e9.

override ROWS: u32 = 2; // rows of a workgroup, 1 to 4
override THREADS: u32 = 64u * ((ROWS + 1u) / 2u);

struct Params {
    zero: u32,         // the guarded lowering's run-time zero
    first: u32,        // first block of this piece of the keys
    dead: u32,         // 1: column 0 is the dead key's, and blocks begin at column 1
    columns: u32,      // columns that hold a key
    stride: u32,       // columns in memory
    score_stride: u32, // floats between rows of the scores
    heads: u32,        // indexer heads, 1 to 4
    halves: u32,       // 2
}

struct Step { pos: u32, n_kv: u32, n_bid: u32, width: u32 }

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> steps: array<Step, 16>;
@group(0) @binding(2) var<storage, read> keys: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> queries: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> scores: array<f32>;

// [row][head][lane]; heads that the shape lacks are zero, which adds +0 to a score.
var<workgroup> query: array<array<array<vec4<f32>, 32>, 4>, 4>;

// Partial sums of two blocks (a, b) and two rows (0, 1), four heads each.
struct Part { a0: vec4<f32>, a1: vec4<f32>, b0: vec4<f32>, b1: vec4<f32> }

fn add_parts(x: Part, y: Part) -> Part {
    return Part(v_add(x.a0, y.a0), v_add(x.a1, y.a1), v_add(x.b0, y.b0), v_add(x.b1, y.b1));
}

fn heads_of(row: u32, lane: u32) -> mat4x4<f32> {
    return mat4x4<f32>(query[row][0][lane], query[row][1][lane], query[row][2][lane], query[row][3][lane]);
}

fn lane_products(k: vec4<f32>, q: mat4x4<f32>) -> vec4<f32> {
    return vec4<f32>(
        lane_product4(k, q[0]),
        lane_product4(k, q[1]),
        lane_product4(k, q[2]),
        lane_product4(k, q[3]),
    );
}

// One lane of columns a and b with rows `row` and `row + 1`.
fn leaf(a: u32, b: u32, row: u32, lane: u32) -> Part {
    let ka = keys[lane * params.stride + a];
    let kb = keys[lane * params.stride + b];
    let q0 = heads_of(row, lane);
    let q1 = heads_of(min(row + 1u, ROWS - 1u), lane);
    return Part(lane_products(ka, q0), lane_products(ka, q1), lane_products(kb, q0), lane_products(kb, q1));
}

fn finish(row: u32, column: u32, d: vec4<f32>) {
    let step = steps[row];
    if (step.n_kv == 0u || column >= params.columns) {
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
    // A step record beyond the rows that are encoded may be live: bounds checks may turn what it would write into a
    // write of the last score.
    let at = row * params.score_stride + block;
    if (block < params.score_stride && at < arrayLength(&scores)) {
        scores[at] = s;
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_row = group.y * ROWS;
    for (var i = thread; i < ROWS * 128u; i += THREADS) {
        let row = first_row + i / 128u;
        let head = i / 32u % 4u;
        var q = vec4<f32>(0.0);
        if (head < params.heads && steps[row].n_kv != 0u) {
            q = queries[(row * params.heads + head) * 32u + i % 32u];
        }
        query[i / 128u][head][i % 32u] = q;
    }
    workgroupBarrier();
    let a = group.x * 128u + thread % 64u;
    let b = a + 64u;
    let row = thread / 64u * 2u;
    if (a >= params.columns) {
        return;
    }
    let d = dots(a, min(b, params.stride - 1u), row);
    finish(first_row + row, a, d.a0);
    finish(first_row + row, b, d.b0);
    if (row + 1u < ROWS) {
        finish(first_row + row + 1u, a, d.a1);
        finish(first_row + row + 1u, b, d.b1);
    }
}
