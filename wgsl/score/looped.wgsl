// The tree over 32 lanes as a loop, for devices whose multiply-add is emulated: the emulation stands in the text for
// each product, and unrolled it would take minutes to compile.
//
// Lanes are visited in bit-reversed order, two an iteration, with one partial sum for each level of the tree (a binary
// counter): the same pairs are added as in the unrolled piece.

fn dots(a: u32, b: u32, row: u32) -> Part {
    var sum: Part;
    var level1: Part;
    var level2: Part;
    var level3: Part;
    var level4: Part;
    for (var i = 0u; i < 16u; i++) {
        let lane = reverseBits(i) >> 28u;
        sum = add_parts(leaf(a, b, row, lane), leaf(a, b, row, lane + 16u));
        if ((i & 1u) == 0u) {
            level1 = sum;
            continue;
        }
        sum = add_parts(level1, sum);
        if ((i & 2u) == 0u) {
            level2 = sum;
            continue;
        }
        sum = add_parts(level2, sum);
        if ((i & 4u) == 0u) {
            level3 = sum;
            continue;
        }
        sum = add_parts(level3, sum);
        if ((i & 8u) == 0u) {
            level4 = sum;
            continue;
        }
        sum = add_parts(level4, sum);
    }
    return sum;
}
