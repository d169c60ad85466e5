//! Activations as q8_1: every adapter against the oracle, bytes.

#![cfg(feature = "wgpu")]

mod common;

use common::experts::assert_same_blocks;
use common::experts::device::{Q8, quantize};
use common::{assert_invalid, contexts, exact_contexts, whole};
use samebits::exact::f16_to_f32;
use samebits::golden::Random;
use samebits::gpu::Context;
use samebits::stages::{ExpertQuantize, Q8Buffers};
use samebits::{reference, wgpu};

fn check_on(what: &str, contexts: impl Iterator<Item = (&'static str, &'static Context)>, x: &[f32]) {
    let want = reference::expert_quantize(x);
    for (name, ctx) in contexts {
        assert_same_blocks(&format!("{name}: {what}"), &quantize(ctx, x), &want);
    }
}

fn check(what: &str, x: &[f32]) {
    check_on(what, contexts(), x);
}

/// A block whose largest magnitude is `largest`, of either sign and at any place.
fn block(random: &mut Random, largest: f32) -> [f32; 32] {
    let mut values = [0.0; 32];
    values.iter_mut().for_each(|v| *v = largest * random.unit());
    let at = random.below(32) as usize;
    values[at] = if random.below(2) == 0 { largest } else { -largest };
    values
}

#[test]
fn sizes() {
    let mut random = Random::new(1);
    for blocks in [1, 2, 7, 8, 9, 80, 81] {
        check("a few blocks", &random.floats(32 * blocks, 5.0));
    }
}

/// Every finite f16 magnitude as the largest of a block.
#[test]
fn every_f16_magnitude() {
    let mut random = Random::new(2);
    let x: Vec<f32> = (0..0x7c00u16).flat_map(|h| block(&mut random, f16_to_f32(h))).collect();
    check("f16 magnitudes", &x);
    // A block of one magnitude: codes of 127 only, and the largest sums.
    let x: Vec<f32> = (0..0x7c00u16).flat_map(|h| [f16_to_f32(h); 32]).collect();
    check("blocks of one f16 magnitude", &x);
}

/// Random magnitudes from 2^-100 to 2^120, half a million on each target and others on the next, in more workgroups than
/// one dimension of a dispatch has.
#[test]
fn random_magnitudes() {
    for (seed, context) in contexts().enumerate() {
        let mut random = Random::new(100 + seed as u64);
        let x: Vec<f32> = (0..65_536 * 8 + 1)
            .flat_map(|_| {
                let bits = (27 + random.below(220)) << 23 | random.below(1 << 23);
                block(&mut random, f32::from_bits(bits))
            })
            .collect();
        check_on("random magnitudes", [context].into_iter(), &x);
    }
}

/// Quotients that lie half way between two codes, and next to it.
#[test]
fn halfway() {
    let mut x = Vec::new();
    for scale in [1.0f32, 0.25, 1.0 / 3.0, 3e-5, 1.7e4] {
        for quarter in 0..16 {
            let mut block = [0.0; 32];
            block[0] = 127.0 * scale;
            for (i, v) in block[1..].iter_mut().enumerate() {
                let half = (quarter * 8 + i / 4) as f32 + 0.5;
                let exact = half * scale;
                *v = [exact, exact.next_down(), exact.next_up(), -exact][i % 4];
            }
            block[1..].iter_mut().for_each(|v| *v = v.clamp(-127.0 * scale, 127.0 * scale));
            x.extend(block);
        }
    }
    check("half way", &x);
}

/// Large activations stay finite: scale and sum are held to the range of f16.
#[test]
fn large_values() {
    let mut random = Random::new(4);
    let mut x = Vec::new();
    for large in [3e4f32, 65_504.0, 65_519.9, 7e4, 1e7, 8_319_008.0, 8_320_032.0, 8_321_040.0, 1e38, f32::MAX]
    {
        let mut one = random.floats(32, 1.0);
        one[random.below(32) as usize] = large;
        x.extend(one);
        x.extend([large; 32].map(|v| v / 32.0));
        x.extend([-large / 32.0; 32]);
        let mixed: Vec<f32> =
            (0..32).map(|i| if i % 3 == 0 { -large / 16.0 } else { large / 16.0 }).collect();
        x.extend(mixed);
        if large < 1e30 {
            x.extend([large; 32]);
            x.extend([-large; 32]);
        }
    }
    check("large", &x);
    for block in reference::expert_quantize(&x) {
        let (d, sum) = (f16_to_f32(block.scale), f16_to_f32(block.sum));
        assert!(d.is_finite() && sum.is_finite(), "{d} {sum}");
    }
    let thirty = reference::expert_quantize(&[3e4; 32]);
    assert_eq!(f16_to_f32(thirty[0].sum), 65_504.0);
}

#[test]
fn zeros() {
    let mut x = vec![0.0f32; 32 * 4];
    x[32..64].fill(-0.0);
    x[64..96].iter_mut().step_by(2).for_each(|v| *v = -0.0);
    x[96 + 5] = 1.0;
    x.extend([0.0; 32]);
    check("zeros", &x);
    let blocks = reference::expert_quantize(&x);
    for zero in [0, 1, 2, 4] {
        assert_eq!((blocks[zero].scale, blocks[zero].codes), (0, [0; 32]), "block {zero}");
    }
}

/// Where subnormals are kept: values, scales, quotients and sums of them.
#[test]
fn subnormals() {
    let mut random = Random::new(5);
    let mut x = Vec::new();
    // Largest magnitudes from the smallest number there is to where nothing is subnormal any more.
    for bits in (0..200).chain((0..2000).map(|_| random.below(0x1000_0000))).collect::<Vec<u32>>() {
        x.extend(block(&mut random, f32::from_bits(bits)));
    }
    // Values that are tiny beside the largest.
    for largest in [1.0f32, 65_504.0, 1e30] {
        let mut values = [f32::from_bits(3), -1e-40, f32::MIN_POSITIVE, 1e-38].repeat(8);
        values[0] = largest;
        x.extend(values);
    }
    check_on("subnormals", exact_contexts(), &x);
}

/// A block that is not finite is unspecified; its neighbours in the same workgroup are as they are without it.
#[test]
fn blocks_that_are_not_finite() {
    let mut random = Random::new(6);
    let clean = random.floats(32 * 40, 2.0);
    let want = reference::expert_quantize(&clean);
    let mut x = clean.clone();
    let bad = |block: usize| block % 3 == 1;
    for block in (0..40).filter(|&b| bad(b)) {
        let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
        for _ in 0..=block {
            x[32 * block + random.below(32) as usize] = values[random.below(4) as usize];
        }
    }
    reference::expert_quantize(&x);
    for (name, ctx) in contexts() {
        let got = quantize(ctx, &x);
        for block in (0..40).filter(|&b| !bad(b)) {
            let one = (got.0[32 * block..][..32].to_vec(), vec![got.1[block]]);
            assert_same_blocks(&format!("{name}: block {block}"), &one, &want[block..=block]);
        }
    }
}

#[test]
fn bad_input_is_a_typed_error() {
    let Some((_, ctx)) = contexts().next() else { return };
    let stage = ExpertQuantize::new(ctx).unwrap();
    let buffer = |bytes| ctx.zeros("test", bytes).unwrap();
    let (x, q8) = (buffer(9 * 128), Q8 { codes: buffer(9 * 32), scales: buffer(9 * 8) });
    let bind = |x: &wgpu::Buffer, blocks, out: &Q8Buffers<'_>| stage.bind(&whole(x), blocks, out);
    bind(&x, 9, &q8.view()).unwrap();
    assert_invalid("blocks", bind(&x, 0, &q8.view()));
    assert_invalid("x", bind(&x, 10, &q8.view()));
    assert_invalid("x", bind(&x, u32::MAX, &q8.view()));
    assert_invalid("out.codes", bind(&buffer(10 * 128), 10, &q8.view()));
    let short = Q8 { codes: buffer(10 * 32), scales: buffer(9 * 8) };
    assert_invalid("out.scales", bind(&buffer(10 * 128), 10, &short.view()));
    let uniform = ctx.uniform("test", &[0u32; 1024]).unwrap();
    assert_invalid("x", bind(&uniform, 9, &q8.view()));
    let view = Q8Buffers { codes: whole(&uniform), ..q8.view() };
    assert_invalid("out.codes", bind(&x, 9, &view));
    let view = Q8Buffers { scales: whole(&uniform), ..q8.view() };
    assert_invalid("out.scales", bind(&x, 9, &view));
}
