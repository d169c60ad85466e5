//! Block formats of quantised weights: layouts and dequantisation, bit for bit ggml's. No GPU type.
//!
//! A row of a matrix is a list of blocks; a block holds 32, 64 or 256 values. Layouts and codebooks are those of ggml
//! (llama.cpp); a weight means what it means there: `dequantize` gives the bits of ggml's `to_float`.
//!
//! | format | values, bytes of a block | a value is |
//! |---|---|---|
//! | `IQ2_XXS`, `IQ2_XS`, `IQ2_S` | 256; 66, 74, 82 | a magnitude from a codebook of 8, a sign, a scale for 32 or 16 values |
//! | `IQ3_XXS`, `IQ3_S` | 256; 98, 110 | a magnitude from a codebook of 4, a sign, a scale for 32 values |
//! | `IQ1_M` | 256; 56 | -1, 0 or 1 from a codebook of 8, moved by 1/8, a scale for 16 values |
//! | `IQ4_XS`, `IQ4_NL` | 256, 32; 136, 18 | one of 16 values, a scale for 32 values |
//! | `Q2_0` | 64; 18 | a code of 2 bits less 1 |
//! | `Q4_K`, `Q5_K` | 256; 144, 176 | a code, a scale and a minimum for 32 values |
//! | `Q6_K` | 256; 210 | a code of 6 bits less 32, a scale for 16 values |
//! | `Q5_1`, `Q8_0` | 32; 24, 34 | a code, with a minimum in `Q5_1` |
//!
//! # Products with q8_1
//!
//! A row is multiplied by activations in blocks of 32 codes ([`Q8Block`]). It is a list of *calls*; a [`Call`] covers one
//! block of activations (in `IQ4_NL` half of one). With `a` the exact sum of the products of codes 0 to 15 and `b` that of
//! 16 to 31, a call's integer is, with `/` truncating toward zero:
//!
//! | format | integer, `s` and `t` its scales |
//! |---|---|
//! | `IQ2_XXS` | `(a + b) * s / 8`, s odd |
//! | `IQ2_XS`, `IQ2_S` | `(a * s + b * t + (a + b) / 2) / 4` |
//! | `IQ3_XXS` | `(s * (a + b) + (a + b) / 2) / 2` |
//! | `IQ1_M`, `Q6_K` | `a * s + b * t`; codes of `IQ1_M` in eighths |
//! | all others | `(a + b) * s` |
//!
//! Its magnitude is below 2^24. Lane `t` of 32 takes calls t, t + 32, ... in turn, `acc = fma(scale * d, integer, acc)` with
//! the product rounded and `d` the block's scale; then, where a format has minimums, `acc = fma(-(minimum * d), factor * sum of
//! the block's codes, acc)` in `Q4_K` and `Q5_K` and `acc = fma(minimum, s, acc)` with the block's sum `s` in `Q5_1`. The
//! lanes are added as a tree ([`exact::tree32`](crate::exact::tree32)).

mod iq1_m;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
pub mod packed;
mod q2_0;
mod q4_k;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
pub mod tables;

use crate::error::{Result, check};
use crate::exact::f16_to_f32;

/// A block format. The names are ggml's.
#[allow(missing_docs, reason = "the module's table describes them")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Iq4Xs,
    Iq4Nl,
    Q2_0,
    Q4K,
    Q5K,
    Q6K,
    Q5_1,
    Q8_0,
}

/// What is known of a format.
struct Layout {
    name: &'static str,
    ggml: u32,
    values: usize,
    bytes: usize,
    dequantize: fn(&[u8], &mut [f32]),
    call: fn(&[u8], usize) -> Call,
    /// The block's f16 scales as ggml stores them: scale, and minimum where there is one.
    scales: fn(&[u8]) -> [f32; 2],
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 14] = [
        Format::Iq1M,
        Format::Iq2Xxs,
        Format::Iq2Xs,
        Format::Iq2S,
        Format::Iq3Xxs,
        Format::Iq3S,
        Format::Iq4Xs,
        Format::Iq4Nl,
        Format::Q2_0,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::Q5_1,
        Format::Q8_0,
    ];

    fn layout(self) -> Layout {
        // Rows: name, number of the type in ggml, values and bytes of a block.
        let l = |name, ggml, values, bytes, dequantize, call, scales| Layout {
            name,
            ggml,
            values,
            bytes,
            dequantize,
            call,
            scales,
        };
        match self {
            Format::Iq1M => l("IQ1_M", 29, 256, 56, iq1_m::dequantize, iq1_m::call, iq1_m::scales),
            Format::Iq2Xxs => l("IQ2_XXS", 16, 256, 66, iq2_xxs::dequantize, iq2_xxs::call, first),
            Format::Iq2Xs => l("IQ2_XS", 17, 256, 74, iq2_xs::dequantize, iq2_xs::call, first),
            Format::Iq2S => l("IQ2_S", 22, 256, 82, iq2_s::dequantize, iq2_s::call, first),
            Format::Iq3Xxs => l("IQ3_XXS", 18, 256, 98, iq3_xxs::dequantize, iq3_xxs::call, first),
            Format::Iq3S => l("IQ3_S", 21, 256, 110, iq3_s::dequantize, iq3_s::call, first),
            Format::Iq4Xs => l("IQ4_XS", 23, 256, 136, iq4_xs::dequantize, iq4_xs::call, first),
            Format::Iq4Nl => l("IQ4_NL", 20, 32, 18, iq4_nl::dequantize, iq4_nl::call, first),
            Format::Q2_0 => l("Q2_0", Q2_0_TYPE, 64, 18, q2_0::dequantize, q2_0::call, first),
            Format::Q4K => l("Q4_K", 12, 256, 144, q4_k::dequantize, q4_k::call, first_two),
            Format::Q5K => l("Q5_K", 13, 256, 176, q5_k::dequantize, q5_k::call, first_two),
            Format::Q6K => l("Q6_K", 14, 256, 210, q6_k::dequantize, q6_k::call, q6_k::scales),
            Format::Q5_1 => l("Q5_1", 7, 32, 24, q5_1::dequantize, q5_1::call, first_two),
            Format::Q8_0 => l("Q8_0", 8, 32, 34, q8_0::dequantize, q8_0::call, first),
        }
    }

    /// The format with this type number in a GGUF file.
    pub fn from_ggml(ggml_type: u32) -> Option<Format> {
        Format::ALL.into_iter().find(|f| f.ggml_type() == ggml_type)
    }

    /// The type's number in a GGUF file.
    pub fn ggml_type(self) -> u32 {
        self.layout().ggml
    }

    /// ggml's name, in capitals.
    pub fn name(self) -> &'static str {
        self.layout().name
    }

    /// Values of a block.
    pub fn block_values(self) -> usize {
        self.layout().values
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.layout().bytes
    }

    /// Bytes of `values` values.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when `values` is no multiple of the block.
    pub fn bytes(self, values: usize) -> Result<usize> {
        let block = self.block_values();
        check(
            values.is_multiple_of(block),
            &format!("values of {}", self.name()),
            format!("a multiple of {block}"),
            values,
        )?;
        Ok(values / block * self.block_bytes())
    }

    /// The values of whole blocks: the bits of ggml's `to_float`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when the number of values is no multiple of the block or `blocks` is
    /// not as long as they need.
    pub fn dequantize(self, blocks: &[u8], values: &mut [f32]) -> Result<()> {
        let layout = self.layout();
        let expected = self.bytes(values.len())?;
        let what = format!("blocks of {}", layout.name);
        check(
            blocks.len() == expected,
            &what,
            format!("{expected} bytes"),
            format!("{} bytes", blocks.len()),
        )?;
        for (block, out) in blocks.chunks_exact(layout.bytes).zip(values.chunks_exact_mut(layout.values)) {
            (layout.dequantize)(block, out);
        }
        Ok(())
    }

    /// Values that a call covers: 16 in `IQ4_NL`, 32 in all others.
    pub fn call_values(self) -> usize {
        if self == Format::Iq4Nl { 16 } else { 32 }
    }

    /// Calls of a row of `values` values.
    pub fn calls(self, values: usize) -> usize {
        values / self.call_values()
    }

    /// Call `k` of a row, decoded. It goes with block [`Format::activation_block`] of the activations.
    ///
    /// # Panics
    /// When the row is too short.
    pub fn call(self, row: &[u8], k: usize) -> Call {
        let layout = self.layout();
        let calls = layout.values / self.call_values();
        (layout.call)(&row[k / calls * layout.bytes..][..layout.bytes], k % calls)
    }

    /// The block of activations that call `k` of a row is multiplied by.
    pub fn activation_block(self, k: usize) -> usize {
        k * self.call_values() / 32
    }

    /// The format's codebook in words, as kernels read it: four magnitudes a word, or the two values of a byte of `IQ4_NL`
    /// and `IQ4_XS`. Empty where codes are values.
    pub fn codebook(self) -> Vec<u32> {
        let halves = |grid: &[u64]| grid.iter().flat_map(|&g| [g as u32, (g >> 32) as u32]).collect();
        match self {
            Format::Iq1M => halves(&tables::IQ1S_GRID),
            Format::Iq2Xxs => halves(&tables::IQ2XXS_GRID),
            Format::Iq2Xs => halves(&tables::IQ2XS_GRID),
            Format::Iq2S => halves(&tables::IQ2S_GRID),
            Format::Iq3Xxs => tables::IQ3XXS_GRID.to_vec(),
            Format::Iq3S => tables::IQ3S_GRID.to_vec(),
            Format::Iq4Xs | Format::Iq4Nl => (0..256)
                .map(|byte: usize| {
                    let value = |code: usize| u32::from(tables::IQ4NL_VALUES[code] as u8);
                    value(byte & 15) | value(byte >> 4) << 8
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// A call's integer from the sums of its first and last 16 products.
    #[inline(always)]
    pub fn integer(self, scales: [i32; 2], a: i32, b: i32) -> i32 {
        let [s, t] = scales;
        match self {
            Format::Iq2Xxs => (a + b) * s / 8,
            Format::Iq2Xs | Format::Iq2S => (a * s + b * t + (a + b) / 2) / 4,
            Format::Iq3Xxs => (s * (a + b) + (a + b) / 2) / 2,
            Format::Iq1M | Format::Q6K => a * s + b * t,
            _ => (a + b) * s,
        }
    }

    /// The first block whose scale or minimum is NaN or infinite, if there is one. Bytes beyond the last whole block
    /// are not looked at.
    pub fn bad_scale(self, blocks: &[u8]) -> Option<usize> {
        let layout = self.layout();
        blocks
            .chunks_exact(layout.bytes)
            .position(|block| (layout.scales)(block).iter().any(|scale| !scale.is_finite()))
    }
}

/// 32 activations: `q8_1` of ggml.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Q8Block {
    /// Codes, -127 to 127.
    pub codes: [i8; 32],
    /// Scale, f16 bits.
    pub scale: u16,
    /// Sum of the 32 values before they became codes, f16 bits.
    pub sum: u16,
}

/// 32 weights of a row, as a product with [`Q8Block`] needs them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    /// One for each value of the block of activations.
    pub codes: [i8; 32],
    /// Of codes 0 to 15 and 16 to 31; the second is 0 where one scale serves all.
    pub scales: [i32; 2],
    /// Factor on the call's integer.
    pub scale: f32,
    /// What is added beside the codes.
    pub minimum: Minimum,
}

/// The minimum of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Minimum {
    /// None.
    None,
    /// `scale * factor` is taken off every value.
    Codes {
        /// The block's scale of minimums.
        scale: f32,
        /// The call's minimum in its units.
        factor: i32,
    },
    /// `scale` is added to every value.
    Sum {
        /// The block's minimum.
        scale: f32,
    },
}

impl Call {
    fn new(scale: f32, scales: [i32; 2]) -> Self {
        Call { codes: [0; 32], scales, scale, minimum: Minimum::None }
    }

    /// Sets `n` codes from `at` on to a codebook's magnitudes, minus where the sign bit is set.
    fn signed(&mut self, at: usize, magnitudes: u64, n: usize, signs: u8) {
        for (j, code) in self.codes[at..at + n].iter_mut().enumerate() {
            let value = (magnitudes >> (8 * j)) as i8;
            *code = if signs >> j & 1 == 1 { -value } else { value };
        }
    }
}

/// The number that the files of ggml 0.26 carry.
const Q2_0_TYPE: u32 = 42;

/// The f16 at byte `at`.
fn half(block: &[u8], at: usize) -> f32 {
    f16_to_f32(half_bits(block, at))
}

/// The 16 bits at byte `at`.
fn half_bits(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The 32 bits at byte `at`.
fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn first(block: &[u8]) -> [f32; 2] {
    [half(block, 0), 0.0]
}

fn first_two(block: &[u8]) -> [f32; 2] {
    [half(block, 0), half(block, 2)]
}

/// The four bits of entry `i` in a list of halves of bytes, the low half first.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 2] >> (4 * (i % 2))) & 15
}

/// The eight signs that seven bits stand for: the eighth makes the number of minus signs even.
fn signs7(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | (bits.count_ones() as u8 & 1) << 7
}

/// `scale` times magnitudes, minus where the sign bit is set. `magnitudes` are bytes, the first lowest.
fn signed(scale: f32, magnitudes: u64, signs: u8, out: &mut [f32]) {
    for (j, y) in out.iter_mut().enumerate() {
        let value = scale * f32::from((magnitudes >> (8 * j)) as u8);
        *y = if signs >> j & 1 == 1 { -value } else { value };
    }
}

/// Scale and minimum of 32 values of `Q4_K` and `Q5_K`: six bits each, `bytes` the 12 bytes that hold eight of both.
fn scale_and_minimum(bytes: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (bytes[i] & 63, bytes[i + 4] & 63)
    } else {
        ((bytes[i + 4] & 15) | (bytes[i - 4] >> 6) << 4, (bytes[i + 4] >> 4) | (bytes[i] >> 6) << 4)
    }
}
