// Parts of a row that are not codes, by their byte in the row, for formats whose calls load what they need themselves.

struct Raw {
    row: u32,
}

fn fetch(row: u32, k: u32) -> Raw {
    return Raw(row);
}

fn rest_word(row: u32, byte: u32) -> u32 {
    return rest[row * REST_WORDS + byte / 4u];
}

fn rest_half(row: u32, byte: u32) -> u32 {
    return (rest_word(row, byte) >> (8u * (byte & 2u))) & 0xffffu;
}

fn rest_byte(row: u32, byte: u32) -> u32 {
    return (rest_word(row, byte) >> (8u * (byte & 3u))) & 0xffu;
}
