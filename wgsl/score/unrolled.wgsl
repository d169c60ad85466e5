// The tree over 32 lanes as nested calls, for devices that fuse multiply-adds: no loop stands between the loads of 16
// lanes, so that many of them are under way at once. The two halves are a loop that drivers cannot unroll (its end is
// a parameter): the code is half as long, and in a decode step it has to be fetched anew each time.

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
    var sum: Part;
    var even: Part;
    for (var half = 0u; half < params.halves; half++) {
        sum = leaf16(a, b, row, half);
        if (half == 0u) {
            even = sum;
        }
    }
    return add_parts(even, sum);
}
