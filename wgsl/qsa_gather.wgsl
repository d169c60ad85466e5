// Gather: the selected cells of one array that is split over several buffers, copied side by side.
// Runs once for each piece of the array and copies what lies in it; only caches larger than one binding need it.
//
// Shapes: ids [rows][id_stride], page table [pages], piece [slots][words], gathered [rows][id_stride][words].
// binding 0  uniform  Params
// binding 1  uniform  step records, one a row
// binding 2  read     cell ids
// binding 3  read     page table
// binding 4  read     the piece
// binding 5  write    gathered
// workgroups: x = 64 words of a row's cells, y = row, z = slice of the words, for rows that x cannot count
//
// Order: words are copied; nothing is added.

struct Params {
    zero: u32,       // not used here
    page_size: u32,
    id_stride: u32,
    words: u32,      // words of a cell
    first_slot: u32, // of the piece
    slots: u32,      // of the piece
    slice: u32,      // words that one layer of workgroups (z) copies
    spare: u32,
}

struct Step { pos: u32, n_kv: u32, n_bid: u32, width: u32 }

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> steps: array<Step, 16>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read> page_table: array<u32>;
@group(0) @binding(4) var<storage, read> piece: array<u32>;
@group(0) @binding(5) var<storage, read_write> gathered: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let row = at.y;
    let index = at.x + at.z * params.slice;
    let entry = index / params.words;
    let word = index % params.words;
    let step = steps[row];
    if (entry >= min(step.width, params.id_stride)) {
        return;
    }
    let cell = min(ids[row * params.id_stride + entry], step.n_kv - 1u);
    let slot = page_table[cell / params.page_size] * params.page_size + cell % params.page_size;
    if (slot >= params.first_slot && slot - params.first_slot < params.slots) {
        gathered[(row * params.id_stride + entry) * params.words + word] =
            piece[(slot - params.first_slot) * params.words + word];
    }
}
