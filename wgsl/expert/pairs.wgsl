// Activations in the order of bytes that hold values j and j + 16: (0, 16, 1, 17), (2, 18, 3, 19), ...

struct Halves { low: vec4<u32>, high: vec4<u32> }

// Bytes (a0, b0, a1, b1).
fn zip_low(a: u32, b: u32) -> u32 {
    return (a & 0xffu) | ((b & 0xffu) << 8u) | ((a & 0xff00u) << 8u) | ((b & 0xff00u) << 16u);
}

fn zip_high(a: u32, b: u32) -> u32 {
    return zip_low(a >> 16u, b >> 16u);
}

fn arrange(low: vec4<u32>, high: vec4<u32>) -> Halves {
    return Halves(
        vec4<u32>(
            zip_low(low.x, high.x),
            zip_high(low.x, high.x),
            zip_low(low.y, high.y),
            zip_high(low.y, high.y),
        ),
        vec4<u32>(
            zip_low(low.z, high.z),
            zip_high(low.z, high.z),
            zip_low(low.w, high.w),
            zip_high(low.w, high.w),
        ),
    );
}
