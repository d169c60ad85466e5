//! The block formats: values against ggml's, bit for bit.

use std::collections::BTreeSet;

use samebits::gguf::Gguf;
use samebits::golden::Random;
use samebits::quant::packed::{Packed, PackedRows};
use samebits::quant::{Format, Minimum, tables};
use samebits::{Error, exact};
use sha2::{Digest, Sha256};

const MIXED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/experts-mixed.gguf");

fn digest(values: &[f32]) -> String {
    Sha256::digest(bytemuck::cast_slice::<f32, u8>(values)).iter().map(|b| format!("{b:02x}")).collect()
}

/// Real weights, quantised by ggml; the digests are of ggml's `to_float`.
#[test]
fn real_weights_are_ggmls() {
    let file = Gguf::open(MIXED).unwrap();
    let mut formats = BTreeSet::new();
    for line in include_str!("data/experts-mixed.sha256.txt").lines() {
        // TENSOR FORMAT expert N sha256 of the f32 values DIGEST
        let words: Vec<&str> = line.split(' ').collect();
        let tensor = file.tensor(words[0]).unwrap_or_else(|| panic!("no tensor {}", words[0]));
        let format = Format::from_ggml(tensor.ggml_type).unwrap();
        assert_eq!(format.name(), words[1]);
        let values = (tensor.shape[0] * tensor.shape[1]) as usize;
        let bytes = format.bytes(values).unwrap();
        let expert: usize = words[3].parse().unwrap();
        let mut out = vec![0.0; values];
        format.dequantize(&file.data(words[0]).unwrap()[expert * bytes..][..bytes], &mut out).unwrap();
        assert_eq!(digest(&out), *words.last().unwrap(), "{line}");
        formats.insert(format);
    }
    assert_eq!(formats.len(), 13, "every format but Q6_K: {formats:?}");
}

/// Blocks of random bits with finite scales; the digests are of the Python package `gguf`.
#[test]
fn random_blocks_are_the_python_packages() {
    const BLOCKS: usize = 4096;
    let mut seen = 0;
    for line in include_str!("golden/dequantise.txt").lines() {
        let (name, expected) = line.split_once(' ').unwrap();
        let format = Format::ALL.into_iter().find(|f| f.name() == name).unwrap();
        let blocks = random_blocks(format, BLOCKS);
        let mut out = vec![0.0; BLOCKS * format.block_values()];
        format.dequantize(&blocks, &mut out).unwrap();
        assert_eq!(digest(&out), expected, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 13, "every format but Q2_0");
}

/// Bytes that hold the highest exponent bits of a block's f16 scales.
fn exponent_bytes(format: Format) -> &'static [usize] {
    match format {
        Format::Iq1M => &[55],
        Format::Q6K => &[209],
        Format::Q4K | Format::Q5K | Format::Q5_1 => &[1, 3],
        _ => &[1],
    }
}

fn random_blocks(format: Format, blocks: usize) -> Vec<u8> {
    let mut random = Random::new(7);
    let size = format.block_bytes();
    let mut bytes: Vec<u8> = (0..blocks * size / 8).flat_map(|_| random.bits().to_le_bytes()).collect();
    for block in bytes.chunks_exact_mut(size) {
        exponent_bytes(format).iter().for_each(|&at| block[at] &= 0xbf);
    }
    bytes
}

/// All codes, with all bytes of a block: ggml's Q2_0 has no second source, so it is spelled out.
#[test]
fn q2_0_is_code_less_one_times_scale() {
    for byte in 0..=255u8 {
        let mut block = [byte; 18];
        block[..2].copy_from_slice(&exact::f32_to_f16(0.75).to_le_bytes());
        let mut out = [0.0; 64];
        Format::Q2_0.dequantize(&block, &mut out).unwrap();
        for four in out.chunks_exact(4) {
            let expected = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6].map(|code| match code {
                0 => -0.75,
                1 => 0.0,
                2 => 0.75,
                _ => 1.5,
            });
            assert_eq!(four, expected);
        }
    }
}

#[test]
fn codebooks_have_no_word_twice() {
    fn distinct<T: Ord + Copy>(words: &[T]) -> bool {
        words.iter().copied().collect::<BTreeSet<T>>().len() == words.len()
    }
    assert!(distinct(&tables::IQ1S_GRID) && distinct(&tables::IQ2S_GRID) && distinct(&tables::IQ2XS_GRID));
    assert!(distinct(&tables::IQ2XXS_GRID) && distinct(&tables::IQ3S_GRID) && distinct(&tables::IQ3XXS_GRID));
    assert!(distinct(&tables::IQ4NL_VALUES));
}

#[test]
fn type_numbers_lead_back() {
    for format in Format::ALL {
        assert_eq!(Format::from_ggml(format.ggml_type()), Some(format));
    }
    // F32 and a number that is no type.
    assert_eq!((Format::from_ggml(0), Format::from_ggml(u32::MAX)), (None, None));
}

#[test]
fn a_scale_that_is_no_number_is_found() {
    for format in Format::ALL {
        let mut blocks = random_blocks(format, 8);
        assert_eq!(format.bad_scale(&blocks), None, "{}", format.name());
        let at = 5 * format.block_bytes();
        // An exponent of ones: infinite or NaN.
        match format {
            // The scale is in the high halves of four words.
            Format::Iq1M => {
                blocks[at + 55] = 0x7f;
                blocks[at + 53] |= 0xf0;
            }
            Format::Q6K => blocks[at + 209] = 0x7c,
            _ => blocks[at + exponent_bytes(format).last().unwrap()] = 0x7c,
        }
        assert_eq!(format.bad_scale(&blocks), Some(5), "{}", format.name());
    }
}

#[test]
fn lengths_that_do_not_fit_are_named() {
    for format in Format::ALL {
        let values = format.block_values();
        let mut out = vec![0.0; values];
        let short = vec![0; format.block_bytes() - 1];
        let error = format.dequantize(&short, &mut out).unwrap_err();
        assert!(matches!(&error, Error::Invalid { what, .. } if what.contains(format.name())), "{error}");
        assert!(matches!(format.bytes(values + 1), Err(Error::Invalid { .. })));
        assert!(matches!(format.dequantize(&[], &mut out[1..]), Err(Error::Invalid { .. })));
        assert_eq!(format.bytes(3 * values).unwrap(), 3 * format.block_bytes());
        format.dequantize(&[], &mut []).unwrap();
    }
}

/// A call is the dequantised values in integers: each value is the scale times the factor times the code, as exactly as
/// the at most four roundings of the dequantisation allow.
#[test]
fn calls_hold_the_dequantised_values() {
    for format in Format::ALL {
        let blocks = random_blocks(format, 512);
        let n = 512 * format.block_values();
        let mut values = vec![0.0; n];
        format.dequantize(&blocks, &mut values).unwrap();
        let mut seen = vec![0; n];
        for k in 0..format.calls(n) {
            let call = format.call(&blocks, k);
            for (j, &code) in call.codes.iter().enumerate() {
                let at = 32 * format.activation_block(k) + j;
                // Half of a block of IQ4_NL.
                if format.call_values() == 16 && j % 16 / 8 != k % 2 {
                    assert_eq!(code, 0);
                    continue;
                }
                let scales = call.scales.map(f64::from);
                let factor = match format {
                    Format::Iq2Xxs => scales[0] / 8.0,
                    Format::Iq2Xs | Format::Iq2S => (scales[j / 16] + 0.5) / 4.0,
                    Format::Iq3Xxs => (scales[0] + 0.5) / 2.0,
                    Format::Iq1M | Format::Q6K => scales[j / 16],
                    _ => scales[0],
                };
                let product = f64::from(call.scale) * factor * f64::from(code);
                let minimum = match call.minimum {
                    Minimum::None => 0.0,
                    Minimum::Codes { scale, factor } => -f64::from(scale) * f64::from(factor),
                    Minimum::Sum { scale } => f64::from(scale),
                };
                let bound = 4.0 * (product.abs() + minimum.abs()) * 2f64.powi(-24);
                let difference = f64::from(values[at]) - (product + minimum);
                assert!(difference.abs() <= bound, "{} {at}: {difference:e} > {bound:e}", format.name());
                seen[at] += 1;
            }
        }
        assert!(seen.iter().all(|&n| n == 1), "{}: each value once", format.name());
    }
}

/// What the products rely on: every integer converts to binary32 exactly.
#[test]
fn integers_stay_below_2_to_the_24() {
    for format in Format::ALL {
        let blocks = random_blocks(format, 4096);
        for k in 0..format.calls(4096 * format.block_values()) {
            let call = format.call(&blocks, k);
            let sum = |codes: &[i8]| codes.iter().map(|&c| 127 * i32::from(c).abs()).sum::<i32>();
            // The signs of the activations make the worst of it.
            let (a, b) = (sum(&call.codes[..16]), sum(&call.codes[16..]));
            for (a, b) in [(a, b), (a, -b), (-a, b), (-a, -b)] {
                let integer = format.integer(call.scales, a, b);
                assert!(integer.abs() < 1 << 24, "{}: {integer}", format.name());
                if let Minimum::Codes { factor, .. } = call.minimum {
                    assert!(factor * 32 * 127 < 1 << 24);
                }
            }
        }
    }
}

#[test]
fn packed_rows_give_the_blocks_back() {
    for format in Format::ALL {
        for blocks in [1, 3, 10] {
            let columns = blocks * format.block_values();
            let packed = Packed::new(format, columns);
            let rows = random_blocks(format, 8 * blocks);
            let mut to = PackedRows::default();
            packed.pack(&rows, &mut to);
            assert_eq!(to.codes.len(), 8 * packed.codes_bytes());
            assert_eq!(to.rest.len(), 8 * packed.rest_bytes());
            assert!(packed.codes_bytes().is_multiple_of(8) && packed.rest_bytes().is_multiple_of(4));
            assert_eq!(packed.row_bytes(), format.bytes(columns).unwrap());
            // What a block grows by when it is prepared, and the row's padding.
            assert!(to.codes.len() + to.rest.len() <= rows.len() * 110 / 100 + 8 * 3);
            assert_eq!(packed.unpack(&to), rows, "{} {blocks}", format.name());
        }
    }
}
