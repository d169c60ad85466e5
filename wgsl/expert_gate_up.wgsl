// Rows of the gate and up matrices times the activations of the tokens that an expert was given.
//
// Shapes: codes and rest [slots][ROWS] packed rows, x [rows][COLUMNS] as q8_1, out [entries][out_stride].
// binding 0  uniform  Params
// binding 1  read     codes of the matrices
// binding 2  read     what else the rows hold
// binding 3  read     the format's codebook
// binding 4  read     activations, codes: 32 bytes a block
// binding 5  read     activations, scale and sum of each block
// binding 6  read     groups: how many; then of each the slot and the number of its entries, and the entries
// binding 7  write    out
// workgroups: x = tiles of rows, in turn; y and z = group
//
// Order: lane t of 32 adds calls t, t + 32, ... with fma from 0; the lanes are added at distance 16, 8, 4, 2, 1.

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> codes: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> rest: array<u32>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
@group(0) @binding(4) var<storage, read> x_codes: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> x_scales: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read> groups: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
