// Rows of quantised matrices times activations: the common part of expert_gate_up and expert_down.
//
// Eight threads share a row; thread j takes calls j, j + 8, j + 16, ..., which belong to lanes j, j + 8, j + 16 and j + 24
// in turn. A call is fetched while the one before it is worked on, and decoded once for all entries of the group. The
// activations of the group's entries are staged in workgroup memory in the order of bytes in which the format's codes
// come (`arrange`), halves of a block apart, so that the 16-byte loads of eight threads are next to each other. A
// workgroup goes through several tiles of rows.
//
// The format's file has: BLOCK, BLOCK_BYTES (of what is not codes), CALL_VALUES, struct Raw, fetch, struct Call, decode,
// load_codebook, stage_extra, accumulate.

override COLUMNS: u32 = 256u;
override ROWS: u32 = 64u;
override THREADS: u32 = 256u;
override ENTRIES: u32 = 4u;         // entries of a group that are staged: 1, 2 or 4
override TILE: u32 = THREADS / 8u;  // rows at a time
override TILES: u32 = (ROWS + TILE - 1u) / TILE;
override BLOCKS: u32 = COLUMNS / BLOCK;
override REST_WORDS: u32 = (BLOCKS * BLOCK_BYTES + 3u) / 4u;
override X_BLOCKS: u32 = COLUMNS / 32u;
override CALLS: u32 = COLUMNS / CALL_VALUES;
override STEPS: u32 = (CALLS + 7u) / 8u;
override STAGED: u32 = 2u * ENTRIES * X_BLOCKS;
override STAGED_BLOCKS: u32 = ENTRIES * X_BLOCKS;
override SUMS: u32 = 9u * TILE;

struct Params {
    zero: u32,        // the guarded lowering's run-time zero
    first_slot: u32,  // the slots of this piece of the matrices
    slots: u32,
    first_row: u32,   // where the rows go in an entry's output
    out_stride: u32,  // floats between entries of the output
    per_token: u32,   // entries of a token that share its activations; 1: every entry has its own
    entries: u32,     // entries that there are
    max_groups: u32,
}

var<workgroup> staged: array<vec4<u32>, STAGED>;
var<workgroup> staged_scale: array<f32, STAGED_BLOCKS>;
var<workgroup> sums: array<vec4<f32>, SUMS>;  // nine a row for eight: rows start in different banks

fn stage(entry: u32, at: u32, thread: u32) {
    let x = min(entry, params.entries - 1u) / params.per_token * X_BLOCKS;
    for (var i = thread; i < X_BLOCKS; i += THREADS) {
        let low = x_codes[2u * (x + i)];
        let high = x_codes[2u * (x + i) + 1u];
        let scales = x_scales[x + i];
        let words = arrange(low, high);
        staged[2u * at * X_BLOCKS + i] = words.low;
        staged[(2u * at + 1u) * X_BLOCKS + i] = words.high;
        staged_scale[at * X_BLOCKS + i] = scales.x;
        stage_extra(at * X_BLOCKS + i, low, high, scales.y);
    }
}

fn dot4(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

fn call1(raw: Raw, k: u32, sum: f32) -> f32 {
    return accumulate(decode(raw, k), 0u, k, sum);
}

fn call2(raw: Raw, k: u32, sum: vec2<f32>) -> vec2<f32> {
    let call = decode(raw, k);
    return vec2<f32>(accumulate(call, 0u, k, sum.x), accumulate(call, 1u, k, sum.y));
}

fn call4(raw: Raw, k: u32, sum: vec4<f32>) -> vec4<f32> {
    let call = decode(raw, k);
    return vec4<f32>(
        accumulate(call, 0u, k, sum.x),
        accumulate(call, 1u, k, sum.y),
        accumulate(call, 2u, k, sum.z),
        accumulate(call, 3u, k, sum.w),
    );
}

// Whether a call is one of the row; known when the shader is compiled unless the row ends within the eight threads.
fn has(k: u32) -> bool {
    return CALLS % 8u == 0u || k < CALLS;
}

// The sums of a thread's four lanes take turns: the first takes the step's call and goes last. Whichever is first in the
// end, a and c are 16 lanes apart, b and d too, and those pairs 8: the tree's distances 16 and 8.
// One, two and four entries differ in their registers only.
fn row1(row: u32, j: u32, first: Raw) -> f32 {
    var a = 0.0;
    var b = 0.0;
    var c = 0.0;
    var d = 0.0;
    var next = first;
    for (var m = 0u; m < STEPS; m++) {
        let k = m * 8u + j;
        let raw = next;
        next = fetch(row, min(k + 8u, CALLS - 1u));
        var sum = a;
        if (has(k)) {
            sum = call1(raw, k, a);
        }
        a = b;
        b = c;
        c = d;
        d = sum;
    }
    return f_add(f_add(a, c), f_add(b, d));
}

fn row2(row: u32, j: u32, first: Raw) -> vec2<f32> {
    var a = vec2<f32>(0.0);
    var b = vec2<f32>(0.0);
    var c = vec2<f32>(0.0);
    var d = vec2<f32>(0.0);
    var next = first;
    for (var m = 0u; m < STEPS; m++) {
        let k = m * 8u + j;
        let raw = next;
        next = fetch(row, min(k + 8u, CALLS - 1u));
        var sum = a;
        if (has(k)) {
            sum = call2(raw, k, a);
        }
        a = b;
        b = c;
        c = d;
        d = sum;
    }
    let pairs = v_add(vec4<f32>(a, b), vec4<f32>(c, d));
    return vec2<f32>(f_add(pairs.x, pairs.z), f_add(pairs.y, pairs.w));
}

fn row4(row: u32, j: u32, first: Raw) -> vec4<f32> {
    var a = vec4<f32>(0.0);
    var b = vec4<f32>(0.0);
    var c = vec4<f32>(0.0);
    var d = vec4<f32>(0.0);
    var next = first;
    for (var m = 0u; m < STEPS; m++) {
        let k = m * 8u + j;
        let raw = next;
        next = fetch(row, min(k + 8u, CALLS - 1u));
        var sum = a;
        if (has(k)) {
            sum = call4(raw, k, a);
        }
        a = b;
        b = c;
        c = d;
        d = sum;
    }
    return v_add(v_add(a, c), v_add(b, d));
}

// Where in the matrices a tile's row is for a thread; behind the last row comes the last once more.
fn matrix_row(slot: u32, tile: u32, thread: u32) -> u32 {
    return slot * ROWS + min(tile * TILE + (thread >> 3u), ROWS - 1u);
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let group = id.z * count.y + id.y;
    if (group >= min(groups[0].x, params.max_groups)) {
        return;
    }
    let head = groups[1u + 2u * group];
    let slot = head.x - params.first_slot;
    let n = clamp(head.y, 1u, ENTRIES);
    if (slot >= params.slots) {
        return;
    }
    let entries = groups[2u + 2u * group];
    let j = thread & 7u;
    var next = fetch(matrix_row(slot, id.x, thread), min(j, CALLS - 1u));
    load_codebook(thread);
    for (var e = 0u; e < n; e++) {
        stage(entries[e], e, thread);
    }

    for (var tile = id.x; tile < TILES; tile += count.x) {
        // What was staged is there; the sums of the tile before have been read.
        workgroupBarrier();
        let row = matrix_row(slot, tile, thread);
        let first = next;
        next = fetch(matrix_row(slot, tile + count.x, thread), min(j, CALLS - 1u));
        let at = thread + (thread >> 3u);
        if (ENTRIES == 1u || n == 1u) {
            sums[at] = vec4<f32>(row1(row, j, first), 0.0, 0.0, 0.0);
        } else if (ENTRIES == 2u || n == 2u) {
            sums[at] = vec4<f32>(row2(row, j, first), 0.0, 0.0);
        } else {
            sums[at] = row4(row, j, first);
        }
        workgroupBarrier();

        // Distances 4, 2 and 1 of the tree, one thread for a row and an entry.
        let r = thread >> 2u;
        let e = thread & 3u;
        let out_row = tile * TILE + r;
        if (r < TILE && e < n && out_row < ROWS) {
            let s = r * 9u;
            let x = f_add(sums[s][e], sums[s + 4u][e]);
            let y = f_add(sums[s + 1u][e], sums[s + 5u][e]);
            let z = f_add(sums[s + 2u][e], sums[s + 6u][e]);
            let w = f_add(sums[s + 3u][e], sums[s + 7u][e]);
            out[entries[e] * params.out_stride + params.first_row + out_row] = f_add(f_add(x, z), f_add(y, w));
        }
    }
}
