// Grouping: the (token, expert) entries of a window by expert, up to PER_GROUP of one expert a group, in ascending order.
//
// Shapes: experts [entries], slots [experts], groups as below.
// binding 0  uniform  Params
// binding 1  read     expert of each entry; entry = token * used + place in the router's order
// binding 2  read     slot of each expert's weights; NONE where they are not on the device
// binding 3  write    groups: word 0 the number of groups; then from word 4 on 8 words a group: slot, number of entries,
//                     two of no use, the entries
// workgroups: one
//
// Order: groups by expert, those of an expert and their entries by entry; no float is added.
// Entries of experts that are not there are in no group. Thread t has the experts base + t of each 256.

struct Params {
    zero: u32,       // not used
    entries: u32,
    experts: u32,
    per_group: u32,  // 1 to 4
    max_groups: u32,
    spare0: u32,
    spare1: u32,
    spare2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> experts: array<u32>;
@group(0) @binding(2) var<storage, read> slots: array<u32>;
@group(0) @binding(3) var<storage, read_write> groups: array<u32>;

const NONE = 0xffffffffu;
const THREADS = 256u;

var<workgroup> chunk: array<u32, THREADS>;
var<workgroup> ends: array<u32, THREADS>;

// Reads the entries from `first` on into `chunk`; gives how many there are.
fn load(first: u32, thread: u32) -> u32 {
    workgroupBarrier();
    if (first + thread < params.entries) {
        chunk[thread] = experts[first + thread];
    }
    workgroupBarrier();
    return min(params.entries - first, THREADS);
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32) {
    var base = 0u;
    for (var first_expert = 0u; first_expert < params.experts; first_expert += THREADS) {
        let expert = first_expert + thread;
        var slot = NONE;
        if (expert < params.experts) {
            slot = slots[expert];
        }
        var n = 0u;
        for (var first = 0u; first < params.entries; first += THREADS) {
            let len = load(first, thread);
            for (var i = 0u; i < len; i++) {
                n += select(0u, 1u, chunk[i] == expert);
            }
        }
        n = select(n, 0u, slot == NONE);
        let mine = (n + params.per_group - 1u) / params.per_group;

        // Sum of the groups of this thread and those before it.
        ends[thread] = mine;
        for (var d = 1u; d < THREADS; d *= 2u) {
            workgroupBarrier();
            var before = 0u;
            if (thread >= d) {
                before = ends[thread - d];
            }
            workgroupBarrier();
            ends[thread] += before;
        }
        workgroupBarrier();
        let start = base + ends[thread] - mine;
        base += ends[THREADS - 1u];

        var found = 0u;
        for (var first = 0u; first < params.entries; first += THREADS) {
            let len = load(first, thread);
            for (var i = 0u; i < len; i++) {
                if (n > 0u && chunk[i] == expert) {
                    let group = start + found / params.per_group;
                    let place = found % params.per_group;
                    if (group < params.max_groups) {
                        let at = 4u + 8u * group;
                        groups[at + 4u + place] = first + i;
                        if (place == 0u) {
                            groups[at] = slot;
                            groups[at + 1u] = min(n - found, params.per_group);
                        }
                    }
                    found += 1u;
                }
            }
        }
    }
    if (thread == 0u) {
        groups[0] = min(base, params.max_groups);
    }
}
