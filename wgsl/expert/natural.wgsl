// Activations as they are: codes 0 to 15, then 16 to 31.

struct Halves { low: vec4<u32>, high: vec4<u32> }

fn arrange(low: vec4<u32>, high: vec4<u32>) -> Halves {
    return Halves(low, high);
}
