//! The order in which a device holds the blocks of a row.
//!
//! ggml's blocks have odd sizes and are aligned to two bytes; neighbouring threads of a GPU want neighbouring words. So the
//! codes of a row come first to last in one array, 8 bytes and more at a time, and all else of the row in another: scales,
//! signs and the like, each kind for all blocks of the row before the next, padded to words. Bytes move, none changes.

use super::Format;

/// `count` pieces of `unit` bytes from byte `at` of a block.
struct Field {
    at: usize,
    unit: usize,
    count: usize,
}

const fn field(at: usize, unit: usize, count: usize) -> Field {
    Field { at, unit, count }
}

/// What goes to the codes (pieces of the fields in turn), and the kinds of the rest.
fn fields(format: Format) -> (Vec<Field>, Vec<Field>) {
    let f = field;
    let (codes, rest) = match format {
        Format::Iq1M => (vec![f(0, 32, 1)], vec![f(32, 16, 1), f(48, 8, 1)]),
        Format::Iq2Xxs => (vec![f(2, 64, 1)], vec![f(0, 2, 1)]),
        Format::Iq2Xs => (vec![f(2, 64, 1)], vec![f(66, 8, 1), f(0, 2, 1)]),
        Format::Iq2S => (vec![f(2, 4, 8), f(34, 4, 8)], vec![f(66, 8, 1), f(74, 8, 1), f(0, 2, 1)]),
        Format::Iq3Xxs => (vec![f(2, 64, 1)], vec![f(66, 32, 1), f(0, 2, 1)]),
        Format::Iq3S => (vec![f(2, 64, 1)], vec![f(74, 32, 1), f(66, 8, 1), f(106, 4, 1), f(0, 2, 1)]),
        Format::Iq4Xs => (vec![f(8, 128, 1)], vec![f(4, 4, 1), f(2, 2, 1), f(0, 2, 1)]),
        Format::Iq4Nl | Format::Q2_0 => (vec![f(2, 16, 1)], vec![f(0, 2, 1)]),
        Format::Q4K => (vec![f(16, 128, 1)], vec![f(4, 12, 1), f(0, 4, 1)]),
        Format::Q5K => (vec![f(48, 128, 1)], vec![f(16, 32, 1), f(4, 12, 1), f(0, 4, 1)]),
        Format::Q6K => (vec![f(0, 128, 1)], vec![f(128, 64, 1), f(192, 16, 1), f(208, 2, 1)]),
        Format::Q5_1 => (vec![f(8, 16, 1)], vec![f(4, 4, 1), f(0, 4, 1)]),
        Format::Q8_0 => (vec![f(2, 32, 1)], vec![f(0, 2, 1)]),
    };
    (codes, rest)
}

/// Sizes of packed rows of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    format: Format,
    blocks: usize,
    codes: usize,
    rest: usize,
}

/// Rows as a device holds them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PackedRows {
    /// Codes, [`Packed::codes_bytes`] a row.
    pub codes: Vec<u8>,
    /// The rest, [`Packed::rest_bytes`] a row.
    pub rest: Vec<u8>,
}

impl Packed {
    /// Rows of `columns` values, a multiple of the block.
    pub fn new(format: Format, columns: usize) -> Self {
        let blocks = columns / format.block_values();
        let (codes, rest) = fields(format);
        let bytes = |fields: &[Field]| fields.iter().map(|f| f.unit * f.count).sum::<usize>() * blocks;
        Packed { format, blocks, codes: bytes(&codes), rest: bytes(&rest).next_multiple_of(4) }
    }

    /// Bytes of a row's codes: a multiple of 8.
    pub fn codes_bytes(&self) -> usize {
        self.codes
    }

    /// Bytes of the rest of a row: a multiple of 4.
    pub fn rest_bytes(&self) -> usize {
        self.rest
    }

    /// Bytes of a row in ggml's blocks.
    pub fn row_bytes(&self) -> usize {
        self.blocks * self.format.block_bytes()
    }

    /// Packs whole rows of blocks and appends them; a last row that is not whole is left out.
    pub fn pack(&self, rows: &[u8], to: &mut PackedRows) {
        let (codes, rest) = fields(self.format);
        for row in rows.chunks_exact(self.row_bytes()) {
            let blocks = || row.chunks_exact(self.format.block_bytes());
            for block in blocks() {
                for i in 0..codes[0].count {
                    codes.iter().for_each(|f| to.codes.extend(&block[f.at + i * f.unit..][..f.unit]));
                }
            }
            for f in &rest {
                blocks().for_each(|block| to.rest.extend(&block[f.at..f.at + f.unit]));
            }
            to.rest.resize(to.rest.len().next_multiple_of(4), 0);
        }
    }

    /// The blocks of packed rows: what [`Packed::pack`] was given.
    pub fn unpack(&self, packed: &PackedRows) -> Vec<u8> {
        let (codes, rest) = fields(self.format);
        let size = self.format.block_bytes();
        let mut rows = vec![0; packed.codes.len() / self.codes * self.row_bytes()];
        for (i, row) in rows.chunks_exact_mut(self.row_bytes()).enumerate() {
            let mut from = packed.codes[i * self.codes..].iter();
            for block in row.chunks_exact_mut(size) {
                for i in 0..codes[0].count {
                    for f in &codes {
                        let to = block[f.at + i * f.unit..][..f.unit].iter_mut();
                        to.zip(&mut from).for_each(|(to, from)| *to = *from);
                    }
                }
            }
            let mut from = packed.rest[i * self.rest..].iter();
            for f in &rest {
                for block in row.chunks_exact_mut(size) {
                    let to = block[f.at..f.at + f.unit].iter_mut();
                    to.zip(&mut from).for_each(|(to, from)| *to = *from);
                }
            }
        }
        rows
    }
}
