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
//
// The code is kept short on purpose: in a decode step it runs once, and is fetched from memory when it does.

override SCORES: bool = true;      // items are scores; else survivors of a former level

struct Params {
    zero: u32,        // the guarded lowering's run-time zero
    level: u32,       // 0: items are scores
    last: u32,        // 1: write ids
    items: u32,       // items of a row at this level, at most
    part: u32,        // items of a part, a multiple of 4, below 65,536
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
const BINS = 2048u;
const NO_BLOCK = 0xffffffffu;

var<workgroup> histogram: array<atomic<u32>, BINS>;
var<workgroup> extremes: array<vec2<u32>, 256>;    // least and greatest key
var<workgroup> thread_sums: array<vec4<u32>, 64>;  // one number a thread
var<workgroup> group_sums: array<vec4<u32>, 4>;    // one number for 16 threads
var<workgroup> found: vec4<u32>;                   // bin of the threshold, cells above it, cells in it

struct Items { key: vec4<u32>, block: vec4<u32> }

// Items 4*i .. 4*i+3 of the row; from `end` on, items that are no blocks. The load itself depends on no branch.
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

// Cells that a block stands for: 4, the tail's 0 to 3, or 0 for what is no block of this row.
fn weights(block: vec4<u32>, step: Step) -> vec4<u32> {
    let tail = select(vec4<u32>(0u), vec4<u32>(step.n_kv & 3u), block == vec4<u32>(step.n_bid));
    return select(tail, vec4<u32>(4u), block < vec4<u32>(step.n_bid));
}

// Least and greatest key of the items, joined with `so_far`.
fn join_extremes(so_far: vec2<u32>, items: Items, step: Step) -> vec2<u32> {
    let there = weights(items.block, step) != vec4<u32>(0u);
    let low = select(vec4<u32>(0xffffffffu), items.key, there);
    let high = select(vec4<u32>(0u), items.key, there);
    return vec2<u32>(
        min(so_far.x, min(min(low.x, low.y), min(low.z, low.w))),
        max(so_far.y, max(max(high.x, high.y), max(high.z, high.w))),
    );
}

// Adds a block's cells to the bin of its key, if the key lies in the interval.
fn count(key: u32, w: u32, low: u32, high: u32, shift: u32) {
    if ((w != 0u) & (key >= low) & (key <= high)) {
        atomicAdd(&histogram[((key - low) >> shift) & (BINS - 1u)], w);
    }
}

// Sum of `own` over the threads before this one, and over all threads.
fn sum_before(thread: u32, own: u32) -> vec2<u32> {
    thread_sums[thread / 4u][thread % 4u] = own;
    workgroupBarrier();
    if (thread < 16u) {
        let s = (thread_sums[thread * 4u] + thread_sums[thread * 4u + 1u])
            + (thread_sums[thread * 4u + 2u] + thread_sums[thread * 4u + 3u]);
        group_sums[thread / 4u][thread % 4u] = s.x + s.y + s.z + s.w;
    }
    workgroupBarrier();
    let group = thread / 16u;
    var before = vec4<u32>(0u);
    var all = vec4<u32>(0u);
    for (var i = 0u; i < 4u; i++) {
        let index = vec4<u32>(0u, 1u, 2u, 3u) + 4u * i;
        all += group_sums[i];
        before += select(vec4<u32>(0u), group_sums[i], index < vec4<u32>(group));
        before += select(vec4<u32>(0u), thread_sums[group * 4u + i], index < vec4<u32>(thread % 16u));
    }
    workgroupBarrier();
    return vec2<u32>(before.x + before.y + before.z + before.w, all.x + all.y + all.z + all.w);
}

// Where a part's survivors go.
struct Place {
    low: u32,    // keys from here to `high` are at the threshold, greater ones above it
    high: u32,
    wanted: u32, // cells to take at the threshold
    out: u32,    // word of the destination where the part begins
    last: bool,
    part_out: u32,
}

// One item of the row: key and block.
fn load_one(row: u32, i: u32) -> vec2<u32> {
    let base = row * params.src_stride;
    if (SCORES) {
        return vec2<u32>(order_key(bitcast<f32>(src[base + i / 4u][i % 4u])), i);
    }
    let pair = src[base + i / 2u];
    return select(pair.xy, pair.zw, (i & 1u) == 1u);
}

// Quads whose items share a word of bits.
const MASK_QUADS = 8u;

// Of quads i .. i+7, at most to `end`: bits of the items above the threshold, and at it.
fn masks(row: u32, i: u32, end: u32, step: Step, low: u32, high: u32) -> vec2<u32> {
    let bits = vec4<u32>(1u, 2u, 4u, 8u);
    var found_bits = vec2<u32>(0u);
    for (var q = 0u; q < min(MASK_QUADS, end - i); q++) {
        let it = load(row, i + q, end);
        let there = weights(it.block, step) != vec4<u32>(0u);
        let over = select(vec4<u32>(0u), bits, (it.key > vec4<u32>(high)) & there);
        let at = select(vec4<u32>(0u), bits, (it.key >= vec4<u32>(low)) & (it.key <= vec4<u32>(high)) & there);
        found_bits |= vec2<u32>(over.x | over.y | over.z | over.w, at.x | at.y | at.z | at.w) << vec2<u32>(4u * q);
    }
    return found_bits;
}

// Writes what survives of one item. `before`: blocks of the part above and at the threshold that come before it.
// Only a row's very last item can weigh less than 4, so that the cells before an item are 4 times the blocks.
fn emit(item: vec2<u32>, over: bool, step: Step, place: Place, before: vec2<u32>) {
    if (place.last) {
        let w = weights(item.yyyy, step).x;
        let taken = min(before.y * 4u, place.wanted);
        let at = before.x * 4u + taken;
        let take = min(select(min(w, place.wanted - taken), w, over), step.width - min(at, step.width));
        for (var c = 0u; c < take; c++) {
            dst[place.out + at + c] = item.y * 4u + c;
        }
    } else {
        let wanted = (place.wanted + 3u) / 4u;
        let at = before.x + min(before.y, wanted);
        if ((over | (before.y < wanted)) & (at < place.part_out)) {
            dst[place.out + at * 2u] = item.x;
            dst[place.out + at * 2u + 1u] = item.y;
        }
    }
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
    let begin = first / 4u;
    let end = begin + (min(params.part, items - first) + 3u) / 4u;

    // The interval of the keys.
    var own_extremes = vec2<u32>(0xffffffffu, 0u);
    for (var i = begin + thread; i < end; i += 2u * THREADS) {
        let a = load(row, i, end);
        let b = load(row, i + THREADS, end);
        own_extremes = join_extremes(join_extremes(own_extremes, a, step), b, step);
    }
    extremes[thread] = own_extremes;
    for (var n = THREADS / 2u; n >= 1u; n /= 2u) {
        workgroupBarrier();
        if (thread < n) {
            let other = extremes[thread + n];
            extremes[thread] = vec2<u32>(min(extremes[thread].x, other.x), max(extremes[thread].y, other.y));
        }
    }
    let all = workgroupUniformLoad(&extremes[0]);

    // The threshold: the interval is cut into 2,048 bins, and the one in which the wanted cells run out becomes the
    // interval, until it is a single key or holds a single block.
    var low = all.x;
    var high = max(all.x, all.y);
    var wanted = step.width;
    for (var pass_ = 0u; pass_ < 3u; pass_++) {
        let shift = max(32u - countLeadingZeros(high - low), 11u) - 11u;
        for (var c = 0u; c < BINS / THREADS; c++) {
            atomicStore(&histogram[c * THREADS + thread], 0u);
        }
        if (thread == 0u) {
            found = vec4<u32>(NO_BLOCK, 0u, 0u, 0u);
        }
        workgroupBarrier();
        for (var i = begin + thread; i < end; i += THREADS) {
            let it = load(row, i, end);
            let w = weights(it.block, step);
            count(it.key.x, w.x, low, high, shift);
            count(it.key.y, w.y, low, high, shift);
            count(it.key.z, w.z, low, high, shift);
            count(it.key.w, w.w, low, high, shift);
        }
        workgroupBarrier();
        // A thread owns 8 neighbouring bins.
        let own_bins = BINS / THREADS;
        var own = 0u;
        for (var b = 0u; b < own_bins; b++) {
            own += atomicLoad(&histogram[thread * own_bins + b]);
        }
        let sums = sum_before(thread, own);
        var above = sums.y - sums.x - own;
        if (above < wanted && wanted <= above + own) {
            // Downwards through the thread's bins to the one in which the wanted cells run out.
            for (var b = 1u; b <= own_bins; b++) {
                let bin = thread * own_bins + own_bins - b;
                let here = atomicLoad(&histogram[bin]);
                if (above < wanted && wanted <= above + here) {
                    found = vec4<u32>(bin, above, here, 0u);
                }
                above += here;
            }
        }
        let f = workgroupUniformLoad(&found);
        if (f.x == NO_BLOCK) {
            // The part holds fewer cells than are wanted: all of it survives.
            low = 0u;
            high = 0xffffffffu;
            wanted = params.part * 4u;
            break;
        }
        low += f.x << shift;
        high = low + min((1u << shift) - 1u, high - low);
        wanted -= f.y;
        if (shift == 0u || f.z <= 4u) {
            break;
        }
        // A level that is not the last one may keep more than is wanted: what is in the bin, if there is room.
        if (params.last == 0u && (step.width - wanted + f.z + 3u) / 4u <= params.part_out) {
            wanted = f.z;
            break;
        }
    }

    // From here on each thread owns consecutive items, so that order is kept without sorting.
    let span = (end - begin + THREADS - 1u) / THREADS;
    let own_begin = min(begin + thread * span, end);
    let own_end = min(own_begin + span, end);
    var own = vec2<u32>(0u);
    var first_masks = vec2<u32>(0u);
    for (var i = own_begin; i < own_end; i += MASK_QUADS) {
        let m = masks(row, i, own_end, step, low, high);
        own += countOneBits(m);
        if (i == own_begin) {
            first_masks = m;
        }
    }
    // A part has fewer than 65,536 items, so that both counts go through one sum.
    let sums = sum_before(thread, own.x | (own.y << 16u));

    let out = row * params.dst_stride + select(group.x * params.part_out * 2u, 0u, params.last == 1u);
    let place = Place(low, high, wanted, out, params.last == 1u, params.part_out);
    var before = vec2<u32>(sums.x & 0xffffu, sums.x >> 16u);
    for (var i = own_begin; i < own_end; i += MASK_QUADS) {
        var m = first_masks;
        if (i > own_begin) {
            m = masks(row, i, own_end, step, low, high);
        }
        for (var rest = m.x | m.y; rest != 0u; rest &= rest - 1u) {
            let bit = firstTrailingBit(rest);
            let over = ((m.x >> bit) & 1u) == 1u;
            emit(load_one(row, i * 4u + bit), over, step, place, before);
            before += select(vec2<u32>(0u, 1u), vec2<u32>(1u, 0u), over);
        }
    }
    if (params.last == 0u) {
        let blocks = (sums.y & 0xffffu) + min(sums.y >> 16u, (wanted + 3u) / 4u);
        for (var i = blocks + thread; i < params.part_out; i += THREADS) {
            dst[out + i * 2u] = 0u;
            dst[out + i * 2u + 1u] = NO_BLOCK;
        }
    }
}
