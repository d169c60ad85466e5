// Activations in the order of words of 16 codes of two bits, of which every fourth is taken at a time:
// (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), and the same of 16 to 31.

struct Halves { low: vec4<u32>, high: vec4<u32> }

fn every_fourth(x: vec4<u32>, shift: u32) -> u32 {
    let b = (x >> vec4<u32>(shift)) & vec4<u32>(0xffu);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

fn transposed(x: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(every_fourth(x, 0u), every_fourth(x, 8u), every_fourth(x, 16u), every_fourth(x, 24u));
}

fn arrange(low: vec4<u32>, high: vec4<u32>) -> Halves {
    return Halves(transposed(low), transposed(high));
}
