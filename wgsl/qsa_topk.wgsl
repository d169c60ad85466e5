// Top-k: the cells of the best blocks.
//
// One workgroup selects from one part of one row: the items are either the row's block scores or the survivors of the
// parts of a former level, always in ascending order of block. A level that is not the last one writes its survivors;
// the last one has a single part and writes cell ids.
//
// Shapes: scores [rows][score_stride], survivors [rows][parts][part_out] of (order key, block), ids [rows][id_stride].
// binding 0  uniform  Params
// binding 1  uniform  step records, one a row
// binding 2  read     level 0: scores, four to a word vector; later levels: survivors, two to a word vector
// binding 3  write    last level: ids; else survivors
//
// Order: no float is added; integer counts only. Ties: equal keys are taken lowest block first, a block may be cut.

override SCORES: bool = true; // items are scores; else survivors of a former level

struct Params {
    zero: u32,        // the guarded lowering's run-time zero
    level: u32,       // 0: items are scores
    last: u32,        // 1: write ids
    items: u32,       // items of a row at this level, at most
    part: u32,        // items of a part, a multiple of 4
    part_in: u32,     // items that a part of the former level left for this one (level > 0)
    part_out: u32,    // survivors that a part leaves
    src_stride: u32,  // word vectors between rows of the source
    dst_stride: u32,  // words between rows of the destination
    level0_part: u32, // items of a part at level 0 (to find how many parts a row has)
    level1_part: u32, // the same at level 1; 0 when this is level 0 or 1
    max_width: u32,   // cells that a row of the destination has room for
}

struct Step { pos: u32, n_kv: u32, n_bid: u32, width: u32 }

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> steps: array<Step, 16>;
@group(0) @binding(2) var<storage, read> src: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> dst: array<u32>;

const THREADS = 256u;
const BINS = 2048u;         // of a histogram: 11 bits of the key
const NO_BLOCK = 0xffffffffu;

var<workgroup> histogram: array<atomic<u32>, 2048>;
var<workgroup> digit_sum: array<u32, 256>;
var<workgroup> group_sum: array<u32, 16>;
var<workgroup> counts: array<vec2<u32>, 256>;
var<workgroup> group_counts: array<vec2<u32>, 16>;
var<workgroup> found: vec3<u32>;                    // digit of the threshold, cells above it, cells of it

struct Items { key: vec4<u32>, block: vec4<u32> }

// Five times four items. They are loaded together, before any of them is used: a part of 5,120 items is one batch of
// every thread, and the loads' latency is paid once.
struct Batch { a: Items, b: Items, c: Items, d: Items, e: Items }
const BATCH = 5u;

// Items 4*i .. 4*i+3 of the row; from `end` on, items that are no blocks. The load itself depends on no branch, so
// that a batch's loads are all under way at once.
fn load(row: u32, i: u32, end: u32) -> Items {
    let there = min(i, end - 1u);
    let base = row * params.src_stride;
    var items: Items;
    if (SCORES) {
        let s = bitcast<vec4<f32>>(src[base + there]);
        items.key = vec4<u32>(order_key(s.x), order_key(s.y), order_key(s.z), order_key(s.w));
        items.block = vec4<u32>(0u, 1u, 2u, 3u) + i * 4u;
    } else {
        let a = src[base + 2u * there];
        let b = src[base + 2u * there + 1u];
        items.key = vec4<u32>(a.x, a.z, b.x, b.z);
        items.block = vec4<u32>(a.y, a.w, b.y, b.w);
    }
    items.block = select(vec4<u32>(NO_BLOCK), items.block, i < end);
    return items;
}

fn load_batch(row: u32, i: u32, stride: u32, end: u32) -> Batch {
    return Batch(
        load(row, i, end),
        load(row, i + stride, end),
        load(row, i + 2u * stride, end),
        load(row, i + 3u * stride, end),
        load(row, i + 4u * stride, end),
    );
}

// Cells that a block stands for: 4, the tail's 0 to 3, or 0 for what is no block of this row.
fn weight(block: u32, step: Step) -> u32 {
    return select(select(0u, step.n_kv & 3u, block == step.n_bid), 4u, block < step.n_bid);
}

fn weights(block: vec4<u32>, step: Step) -> vec4<u32> {
    return vec4<u32>(weight(block.x, step), weight(block.y, step), weight(block.z, step), weight(block.w, step));
}

// Keys are looked at 11, 11 and 10 bits at a time. `shift` cuts off what comes after the digit.
fn count(key: u32, w: u32, prefix: u32, shift: u32, bits: u32) {
    // At the first digit nothing is fixed yet; a shift by 32 is not defined, so the prefix is compared in two steps.
    if (w != 0u && ((key >> shift) >> bits) == prefix) {
        atomicAdd(&histogram[(key >> shift) & (BINS - 1u) & ((1u << bits) - 1u)], w);
    }
}

fn count_items(items: Items, step: Step, prefix: u32, shift: u32, bits: u32) {
    let w = weights(items.block, step);
    count(items.key.x, w.x, prefix, shift, bits);
    count(items.key.y, w.y, prefix, shift, bits);
    count(items.key.z, w.z, prefix, shift, bits);
    count(items.key.w, w.w, prefix, shift, bits);
}

// Blocks above and at the threshold.
fn over_and_at(items: Items, step: Step, threshold: u32, shift: u32) -> vec2<u32> {
    let there = vec4<u32>(weights(items.block, step) != vec4<u32>(0u));
    let key = items.key >> vec4<u32>(shift);
    let over = vec4<u32>(key > vec4<u32>(threshold)) * there;
    let at = vec4<u32>(key == vec4<u32>(threshold)) * there;
    return vec2<u32>(over.x + over.y + over.z + over.w, at.x + at.y + at.z + at.w);
}

// Where a thread's blocks go.
struct Place {
    threshold: u32, // compared with the key's bits above `shift`
    shift: u32,
    wanted: u32,   // cells to take at the threshold
    out: u32,      // word of the destination where the part begins
}

// Writes what survives of one item. `before`: blocks of the part above and at the threshold that come before it.
// Only a row's very last item can weigh less than 4, so that the cells before an item are 4 times the blocks.
fn emit(key: u32, block: u32, step: Step, place: Place, before: vec2<u32>) -> vec2<u32> {
    let w = weight(block, step);
    let digits = key >> place.shift;
    if (w == 0u || digits < place.threshold) {
        return before;
    }
    let over = digits > place.threshold;
    if (params.last == 1u) {
        let taken = min(before.y * 4u, place.wanted);
        let at = before.x * 4u + taken;
        let take = min(select(min(w, place.wanted - taken), w, over), step.width - min(at, step.width));
        for (var c = 0u; c < 4u; c++) {
            if (c < take) {
                dst[place.out + at + c] = block * 4u + c;
            }
        }
    } else {
        let wanted = (place.wanted + 3u) / 4u;
        let at = before.x + min(before.y, wanted);
        if ((over || before.y < wanted) && at < params.part_out) {
            dst[place.out + at * 2u] = key;
            dst[place.out + at * 2u + 1u] = block;
        }
    }
    return before + select(vec2<u32>(0u, 1u), vec2<u32>(1u, 0u), over);
}

fn emit_items(items: Items, step: Step, place: Place, before: vec2<u32>) -> vec2<u32> {
    let x = emit(items.key.x, items.block.x, step, place, before);
    let y = emit(items.key.y, items.block.y, step, place, x);
    let z = emit(items.key.z, items.block.z, step, place, y);
    return emit(items.key.w, items.block.w, step, place, z);
}

// One bin, going downwards: `at` becomes it when the threshold lies in it, else its cells join those above.
fn take_bin(bin: u32, here: u32, wanted: u32, at: ptr<function, u32>, cells: ptr<function, u32>, rest: ptr<function, u32>) {
    if (*at == NO_BLOCK) {
        if (*rest + here >= wanted) {
            *at = bin;
            *cells = here;
        } else {
            *rest += here;
        }
    }
}

// Cells in the bins above this thread's, by sums over groups of 16 threads. The loops run over all groups and all
// threads of a group, so that they can be unrolled.
fn cells_above(thread: u32, own: u32) -> u32 {
    digit_sum[thread] = own;
    workgroupBarrier();
    if (thread < 16u) {
        var sum = 0u;
        for (var i = 0u; i < 16u; i++) {
            sum += digit_sum[thread * 16u + i];
        }
        group_sum[thread] = sum;
    }
    workgroupBarrier();
    let group = thread / 16u;
    var above = 0u;
    for (var i = 0u; i < 16u; i++) {
        above += select(0u, group_sum[i], i > group);
        above += select(0u, digit_sum[group * 16u + i], group * 16u + i > thread);
    }
    return above;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    var step = steps[row];
    step.width = min(step.width, params.max_width);
    let identity = step.n_kv <= step.width;
    if (identity) {
        if (params.last == 1u) {
            for (var i = thread; i < step.width; i += THREADS) {
                dst[row * params.dst_stride + i] = i;
            }
        }
        return;
    }

    // How many items this row has at this level, and which of them are this part's.
    var items = step.n_bid + 1u;
    if (params.level > 0u) {
        items = (items + params.level0_part - 1u) / params.level0_part * params.part_in;
    }
    if (params.level1_part > 0u) {
        items = (items + params.level1_part - 1u) / params.level1_part * params.part_in;
    }
    items = min(items, params.items);
    let first = group.x * params.part;
    if (first >= items) {
        return;
    }
    let size = min(params.part, items - first);
    let begin = first / 4u;
    let end = begin + (size + 3u) / 4u;
    let group16 = thread / 16u;

    // The threshold key, digit by digit, and the cells still wanted at it.
    var threshold = 0u;
    var shift = 32u;
    var wanted = step.width;
    for (var digit = 0u; digit < 3u; digit++) {
        let bits = select(11u, 10u, digit == 2u);
        shift -= bits;
        for (var c = 0u; c < BINS / THREADS; c++) {
            atomicStore(&histogram[c * THREADS + thread], 0u);
        }
        if (thread == 0u) {
            found = vec3<u32>(NO_BLOCK, 0u, 0u);
        }
        workgroupBarrier();
        for (var i = begin + thread; i < end; i += BATCH * THREADS) {
            let batch = load_batch(row, i, THREADS, end);
            count_items(batch.a, step, threshold, shift, bits);
            count_items(batch.b, step, threshold, shift, bits);
            count_items(batch.c, step, threshold, shift, bits);
            count_items(batch.d, step, threshold, shift, bits);
            count_items(batch.e, step, threshold, shift, bits);
        }
        workgroupBarrier();
        // A thread owns 8 neighbouring bins, 16 threads make a group.
        let own_bin = thread * 8u;
        let b0 = atomicLoad(&histogram[own_bin]);
        let b1 = atomicLoad(&histogram[own_bin + 1u]);
        let b2 = atomicLoad(&histogram[own_bin + 2u]);
        let b3 = atomicLoad(&histogram[own_bin + 3u]);
        let b4 = atomicLoad(&histogram[own_bin + 4u]);
        let b5 = atomicLoad(&histogram[own_bin + 5u]);
        let b6 = atomicLoad(&histogram[own_bin + 6u]);
        let b7 = atomicLoad(&histogram[own_bin + 7u]);
        let own = ((b0 + b1) + (b2 + b3)) + ((b4 + b5) + (b6 + b7));
        let above = cells_above(thread, own);
        if (above < wanted && wanted <= above + own) {
            // Downwards through the thread's bins to the one that the threshold lies in.
            var rest = above;
            var at = select(NO_BLOCK, 7u, rest + b7 >= wanted);
            var cells = b7;
            rest += select(0u, b7, at == NO_BLOCK);
            take_bin(6u, b6, wanted, &at, &cells, &rest);
            take_bin(5u, b5, wanted, &at, &cells, &rest);
            take_bin(4u, b4, wanted, &at, &cells, &rest);
            take_bin(3u, b3, wanted, &at, &cells, &rest);
            take_bin(2u, b2, wanted, &at, &cells, &rest);
            take_bin(1u, b1, wanted, &at, &cells, &rest);
            take_bin(0u, b0, wanted, &at, &cells, &rest);
            found = vec3<u32>(own_bin + at, rest, cells);
        }
        let f = workgroupUniformLoad(&found);
        if (f.x == NO_BLOCK) {
            // The part holds fewer cells than are wanted: all of it survives.
            threshold = 0u;
            wanted = params.part * 4u;
            break;
        }
        threshold = (threshold << bits) | f.x;
        wanted -= f.y;
        // A single block is left at the threshold: its further digits decide nothing.
        if (f.z <= 4u) {
            break;
        }
    }

    // From here on each thread owns consecutive items, so that order is kept without sorting.
    let span = (end - begin + THREADS - 1u) / THREADS;
    let own_begin = min(begin + thread * span, end);
    let own_end = min(own_begin + span, end);
    var own_counts = vec2<u32>(0u);
    for (var i = own_begin; i < own_end; i += BATCH) {
        let batch = load_batch(row, i, 1u, own_end);
        own_counts += over_and_at(batch.a, step, threshold, shift);
        own_counts += over_and_at(batch.b, step, threshold, shift);
        own_counts += over_and_at(batch.c, step, threshold, shift);
        own_counts += over_and_at(batch.d, step, threshold, shift);
        own_counts += over_and_at(batch.e, step, threshold, shift);
    }
    counts[thread] = own_counts;
    workgroupBarrier();
    if (thread < 16u) {
        var sum = vec2<u32>(0u);
        for (var i = 0u; i < 16u; i++) {
            sum += counts[thread * 16u + i];
        }
        group_counts[thread] = sum;
    }
    workgroupBarrier();
    var before = vec2<u32>(0u);
    var total = vec2<u32>(0u);
    for (var i = 0u; i < 16u; i++) {
        total += group_counts[i];
        before += select(vec2<u32>(0u), group_counts[i], i < group16);
        before += select(vec2<u32>(0u), counts[group16 * 16u + i], group16 * 16u + i < thread);
    }

    let out = row * params.dst_stride + select(group.x * params.part_out * 2u, 0u, params.last == 1u);
    let place = Place(threshold, shift, wanted, out);
    for (var i = own_begin; i < own_end; i += BATCH) {
        let batch = load_batch(row, i, 1u, own_end);
        before = emit_items(batch.a, step, place, before);
        before = emit_items(batch.b, step, place, before);
        before = emit_items(batch.c, step, place, before);
        before = emit_items(batch.d, step, place, before);
        before = emit_items(batch.e, step, place, before);
    }
    if (params.last == 0u) {
        for (var i = total.x + min(total.y, (wanted + 3u) / 4u) + thread; i < params.part_out; i += THREADS) {
            dst[out + i * 2u] = 0u;
            dst[out + i * 2u + 1u] = NO_BLOCK;
        }
    }
}
