//! The order in which a device holds the blocks of a row.
//!
//! ggml's blocks have odd sizes and are aligned to two bytes; neighbouring threads of a GPU want neighbouring words. So the
//! codes of a row come first to last in one array, 8 bytes and more at a time, and all else of the row in another: scales,
//! signs and the like, each kind for all blocks of the row before the next, padded to words.
//!
//! Blocks of the formats with sign bits are prepared first, so that a thread has less to do: all 32 sign bits of a call
//! are there, bit `8 * (i % 4) + i / 4` that of value `i`, and the scale is a binary32 number. That costs up to 9% of
//! memory and loses nothing.

use std::ops::Range;

use super::Format;
use crate::exact::{f16_to_f32, f32_to_f16};

/// Where in a prepared block the codes are, and the kinds of the rest.
#[allow(clippy::single_range_in_vec_init, reason = "one kind of rest is a list of one")]
fn fields(format: Format) -> (Range<usize>, &'static [Range<usize>]) {
    match format {
        Format::Iq1M => (0..32, &[32..48, 48..56]),
        Format::Iq2Xxs => (0..64, &[64..68, 68..72]),
        Format::Iq2Xs => (0..64, &[64..68, 72..80, 68..72]),
        Format::Iq2S => (0..64, &[64..68, 68..76, 76..84]),
        Format::Iq3Xxs => (0..64, &[64..96, 96..100, 100..104]),
        Format::Iq3S => (0..64, &[64..96, 96..100, 100..108, 108..112]),
        Format::Iq4Xs => (8..136, &[4..8, 2..4, 0..2]),
        Format::Iq4Nl | Format::Q2_0 => (2..18, &[0..2]),
        Format::Q4K => (16..144, &[4..16, 0..4]),
        Format::Q5K => (48..176, &[16..48, 4..16, 0..4]),
        Format::Q6K => (0..128, &[128..192, 192..208, 208..210]),
        Format::Q5_1 => (8..24, &[4..8, 0..4]),
        Format::Q8_0 => (2..34, &[0..2]),
    }
}

/// Bytes of a prepared block.
fn prepared_bytes(format: Format) -> usize {
    match format {
        Format::Iq2Xxs => 72,
        Format::Iq2Xs => 80,
        Format::Iq2S => 84,
        Format::Iq3Xxs => 104,
        Format::Iq3S => 112,
        _ => format.block_bytes(),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Bit `i` goes to bit `8 * (i % 4) + i / 4`.
fn spread(signs: u32) -> u32 {
    (0..32).fold(0, |out, i| out | ((signs >> i) & 1) << (8 * (i % 4) + i / 4))
}

/// The other way.
fn gathered(signs: u32) -> u32 {
    (0..32).fold(0, |out, i| out | ((signs >> (8 * (i % 4) + i / 4)) & 1) << i)
}

/// Four times seven bits, each with the one that makes their number even.
fn with_parity(sevens: [u32; 4]) -> u32 {
    let byte = |seven: u32| seven | (seven.count_ones() & 1) << 7;
    (0..4).fold(0, |out, i| out | byte(sevens[i]) << (8 * i))
}

fn without_parity(signs: u32) -> [u32; 4] {
    [0, 8, 16, 24].map(|shift| (signs >> shift) & 127)
}

/// ggml's block as the kernels want it.
///
/// * IQ2_XXS: eight times four indices and signs; eight scales of four bits; d.
/// * IQ2_XS: eight times the low bytes of four indices and signs; d; eight times four high bits, as in IQ2_S a byte, but
///   one bit each; two scales of four bits for each call
/// * IQ2_S: eight times the low bytes of four indices and signs; d; eight times four times two high bits; scales.
/// * IQ3_XXS, IQ3_S: 64 indices, eight signs, scales of four bits, IQ3_S's high bits, d.
fn prepare(format: Format, block: &[u8], to: &mut Vec<u8>) {
    let d = || f16_to_f32(u16_at(block, 0)).to_le_bytes();
    let nibbles = |scale: &dyn Fn(usize) -> u32| {
        let pair = |i: usize| (scale(2 * i) | scale(2 * i + 1) << 4) as u8;
        [0, 1, 2, 3].map(pair)
    };
    match format {
        Format::Iq2Xxs => {
            let word = |k: usize| u32_at(block, 2 + 8 * k + 4);
            for k in 0..8 {
                to.extend(&block[2 + 8 * k..][..4]);
                let sevens = [0, 7, 14, 21].map(|shift| (word(k) >> shift) & 127);
                to.extend(spread(with_parity(sevens)).to_le_bytes());
            }
            to.extend(nibbles(&|k| word(k) >> 28));
            to.extend(d());
        }
        Format::Iq2Xs => {
            let word = |k: usize, i: usize| u32::from(u16_at(block, 2 + 8 * k + 2 * i));
            for k in 0..8 {
                (0..4).for_each(|i| to.push(word(k, i) as u8));
                to.extend(spread(with_parity([0, 1, 2, 3].map(|i| word(k, i) >> 9))).to_le_bytes());
            }
            to.extend(nibbles(&|k| (0..4).fold(0, |out, i| out | ((word(k, i) >> 8) & 1) << i)));
            to.extend(d());
            to.extend(&block[66..74]);
        }
        Format::Iq2S => {
            for k in 0..8 {
                to.extend(&block[2 + 4 * k..][..4]);
                to.extend(spread(u32_at(block, 34 + 4 * k)).to_le_bytes());
            }
            to.extend(d());
            to.extend(&block[66..82]);
        }
        Format::Iq3Xxs => {
            let word = |k: usize| u32_at(block, 66 + 4 * k);
            to.extend(&block[2..66]);
            for k in 0..8 {
                let sevens = [0, 7, 14, 21].map(|shift| (word(k) >> shift) & 127);
                to.extend(spread(with_parity(sevens)).to_le_bytes());
            }
            to.extend(nibbles(&|k| word(k) >> 28));
            to.extend(d());
        }
        Format::Iq3S => {
            to.extend(&block[2..66]);
            (0..8).for_each(|k| to.extend(spread(u32_at(block, 74 + 4 * k)).to_le_bytes()));
            to.extend(&block[106..110]);
            to.extend(&block[66..74]);
            to.extend(d());
        }
        _ => to.extend(block),
    }
}

/// The f16 bits that were widened to these; a NaN keeps its bits.
fn narrow(bits: u32) -> u16 {
    match bits & 0x7f80_0000 {
        0x7f80_0000 => (bits >> 16 & 0x8000) as u16 | 0x7c00 | (bits >> 13 & 0x3ff) as u16,
        _ => f32_to_f16(f32::from_bits(bits)),
    }
}

/// ggml's block of a prepared one.
fn restore(format: Format, from: &[u8], block: &mut [u8]) {
    let d = |at: usize| narrow(u32_at(from, at)).to_le_bytes();
    let signs = |at: usize| gathered(u32_at(from, at));
    let nibble = |at: usize, k: usize| u32::from(from[at + k / 2] >> (4 * (k % 2)) & 15);
    let sevens = |at: usize| {
        let [a, b, c, d] = without_parity(signs(at));
        a | b << 7 | c << 14 | d << 21
    };
    match format {
        Format::Iq2Xxs => {
            block[..2].copy_from_slice(&d(68));
            for k in 0..8 {
                block[2 + 8 * k..][..4].copy_from_slice(&from[8 * k..][..4]);
                let word = sevens(8 * k + 4) | nibble(64, k) << 28;
                block[6 + 8 * k..][..4].copy_from_slice(&word.to_le_bytes());
            }
        }
        Format::Iq2Xs => {
            block[..2].copy_from_slice(&d(68));
            for k in 0..8 {
                let sevens = without_parity(signs(8 * k + 4));
                for i in 0..4 {
                    let high = nibble(64, k) >> i & 1;
                    let word = u32::from(from[8 * k + i]) | high << 8 | sevens[i] << 9;
                    block[2 + 8 * k + 2 * i..][..2].copy_from_slice(&(word as u16).to_le_bytes());
                }
            }
            block[66..74].copy_from_slice(&from[72..80]);
        }
        Format::Iq2S => {
            block[..2].copy_from_slice(&d(64));
            for k in 0..8 {
                block[2 + 4 * k..][..4].copy_from_slice(&from[8 * k..][..4]);
                block[34 + 4 * k..][..4].copy_from_slice(&signs(8 * k + 4).to_le_bytes());
            }
            block[66..82].copy_from_slice(&from[68..84]);
        }
        Format::Iq3Xxs => {
            block[..2].copy_from_slice(&d(100));
            block[2..66].copy_from_slice(&from[..64]);
            for k in 0..8 {
                let word = sevens(64 + 4 * k) | nibble(96, k) << 28;
                block[66 + 4 * k..][..4].copy_from_slice(&word.to_le_bytes());
            }
        }
        Format::Iq3S => {
            block[..2].copy_from_slice(&d(108));
            block[2..66].copy_from_slice(&from[..64]);
            for k in 0..8 {
                block[74 + 4 * k..][..4].copy_from_slice(&signs(64 + 4 * k).to_le_bytes());
            }
            block[106..110].copy_from_slice(&from[96..100]);
            block[66..74].copy_from_slice(&from[100..108]);
        }
        _ => block.copy_from_slice(from),
    }
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
        let rest = rest.iter().map(Range::len).sum::<usize>() * blocks;
        Packed { format, blocks, codes: codes.len() * blocks, rest: rest.next_multiple_of(4) }
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
        let mut prepared = Vec::new();
        for row in rows.chunks_exact(self.row_bytes()) {
            prepared.clear();
            let blocks = row.chunks_exact(self.format.block_bytes());
            blocks.for_each(|block| prepare(self.format, block, &mut prepared));
            let blocks = || prepared.chunks_exact(prepared_bytes(self.format));
            blocks().for_each(|block| to.codes.extend(&block[codes.clone()]));
            for kind in rest {
                blocks().for_each(|block| to.rest.extend(&block[kind.clone()]));
            }
            to.rest.resize(to.rest.len().next_multiple_of(4), 0);
        }
    }

    /// The blocks of packed rows: what [`Packed::pack`] was given.
    pub fn unpack(&self, packed: &PackedRows) -> Vec<u8> {
        let (codes, rest) = fields(self.format);
        let size = prepared_bytes(self.format);
        let mut rows = vec![0; packed.codes.len() / self.codes * self.row_bytes()];
        let mut prepared = vec![0; self.blocks * size];
        for (i, row) in rows.chunks_exact_mut(self.row_bytes()).enumerate() {
            let mut from = packed.codes[i * self.codes..].chunks_exact(codes.len());
            let next = |block: &mut [u8]| {
                block[codes.clone()].copy_from_slice(from.next().expect("codes of every block"));
            };
            prepared.chunks_exact_mut(size).for_each(next);
            let mut from = &packed.rest[i * self.rest..];
            for kind in rest {
                for block in prepared.chunks_exact_mut(size) {
                    let (bytes, rest) = from.split_at(kind.len());
                    block[kind.clone()].copy_from_slice(bytes);
                    from = rest;
                }
            }
            let blocks = row.chunks_exact_mut(self.format.block_bytes());
            prepared
                .chunks_exact(size)
                .zip(blocks)
                .for_each(|(from, block)| restore(self.format, from, block));
        }
        rows
    }
}
