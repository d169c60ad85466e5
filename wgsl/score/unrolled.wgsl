// The tree over 32 lanes as nested calls, for devices that fuse multiply-adds: no loop stands between the loads of
// the keys, so that many of them are under way at once.

fn leaf2(a: u32, b: u32, row: u32, lane: u32) -> Part {
    return add_parts(leaf(a, b, row, lane), leaf(a, b, row, lane + 16u));
}

fn leaf4(a: u32, b: u32, row: u32, lane: u32) -> Part {
    return add_parts(leaf2(a, b, row, lane), leaf2(a, b, row, lane + 8u));
}

fn leaf8(a: u32, b: u32, row: u32, lane: u32) -> Part {
    return add_parts(leaf4(a, b, row, lane), leaf4(a, b, row, lane + 4u));
}

fn leaf16(a: u32, b: u32, row: u32, lane: u32) -> Part {
    return add_parts(leaf8(a, b, row, lane), leaf8(a, b, row, lane + 2u));
}

fn dots(a: u32, b: u32, row: u32) -> Part {
    return add_parts(leaf16(a, b, row, 0u), leaf16(a, b, row, 1u));
}
