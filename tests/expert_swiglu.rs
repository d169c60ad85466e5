//! The gated activation as q8_1: every adapter against the oracle, bytes.

#![cfg(feature = "wgpu")]

mod common;

use common::experts::assert_same_blocks;
use common::experts::device::{Q8, swiglu};
use common::{assert_invalid, contexts, exact_contexts, whole};
use samebits::golden::Random;
use samebits::gpu::Context;
use samebits::quant::Q8Block;
use samebits::reference;
use samebits::stages::ExpertSwiglu;

/// Gate and up of entries: `[entries][2][n_ff]`.
fn inputs(random: &mut Random, entries: usize, n_ff: usize) -> Vec<f32> {
    let entry = |random: &mut Random| [random.floats(n_ff, 20.0), random.floats(n_ff, 5.0)].concat();
    (0..entries).flat_map(|_| entry(random)).collect()
}

fn oracle(gate_up: &[f32], n_ff: usize) -> Vec<Q8Block> {
    let entry = |both: &[f32]| {
        let (gate, up) = both.split_at(n_ff);
        reference::expert_quantize(&reference::expert_swiglu(gate, up))
    };
    gate_up.chunks_exact(2 * n_ff).flat_map(entry).collect()
}

fn check_on(contexts: impl Iterator<Item = (&'static str, &'static Context)>, x: &[f32], n_ff: usize) {
    let want = oracle(x, n_ff);
    for (name, ctx) in contexts {
        let what = format!("{name}: {} entries of {n_ff}", x.len() / n_ff / 2);
        assert_same_blocks(&what, &swiglu(ctx, x, n_ff), &want);
    }
}

#[test]
fn sizes() {
    let mut random = Random::new(1);
    for (entries, n_ff) in [(1, 32), (3, 32), (9, 32), (1, 64), (5, 96), (1, 256), (2, 640), (80, 640)] {
        check_on(contexts(), &inputs(&mut random, entries, n_ff), n_ff);
    }
}

/// More workgroups than one dimension of a dispatch has, on one adapter: the kernel is the same on all.
#[test]
fn more_workgroups_than_a_dimension_has() {
    let x = inputs(&mut Random::new(2), 65_535 * 8 + 4, 32);
    check_on(contexts().take(1), &x, 32);
}

/// Gates from which the factor is 1 or nearly 0 but the result still normal, in every place of a block.
#[test]
fn extreme_gates() {
    let gates = [0.0, -0.0, 1e-20, 16.6, 17.4, 88.0, 89.0, 1e4, 3e30, -1e-20, -16.6, -30.0, -60.0, -80.0];
    let ups = [1.0, -1.0, 0.0, -0.0, 3.5, 1e4, -1e5];
    let mut x = Vec::new();
    for entry in 0..28 {
        x.extend((0..64).map(|i| gates[(entry + i) % gates.len()]));
        x.extend((0..64).map(|i| ups[(entry / 14 + i * 3) % ups.len()]));
    }
    check_on(contexts(), &x, 64);
}

/// The same where e^-gate is infinite, and results are subnormal.
#[test]
fn extreme_gates_with_subnormal_results() {
    let gates = [-87.0f32, -88.0, -88.7, -88.73, -89.0, -104.0, -1e30, f32::MIN, 1e-40, -1e-45, -85.0];
    let ups = [1.0f32, -1.0, 1e-3, -1e-30, 1e30, 1e-44, f32::MAX];
    let mut x = Vec::new();
    for entry in 0..22 {
        x.extend((0..64).map(|i| gates[(entry + i / 2) % gates.len()]));
        x.extend((0..64).map(|i| ups[(entry / 11 + i / 9) % ups.len()]));
    }
    check_on(exact_contexts(), &x, 64);
}

/// What is not finite stays within its block.
#[test]
fn blocks_that_are_not_finite() {
    let mut random = Random::new(3);
    let clean = inputs(&mut random, 9, 96);
    let want = oracle(&clean, 96);
    let mut x = clean.clone();
    // In the middle block of each entry, in the gate, in up, or in both.
    for (entry, both) in x.chunks_exact_mut(192).enumerate() {
        let value = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][entry % 3];
        let at = 32 + random.below(32) as usize;
        if entry % 2 == 0 {
            both[at] = value;
        }
        if entry % 3 != 1 {
            both[96 + at] = value;
        }
    }
    oracle(&x, 96);
    for (name, ctx) in contexts() {
        let got = swiglu(ctx, &x, 96);
        for block in (0..want.len()).filter(|b| b % 3 != 1) {
            let one = (got.0[32 * block..][..32].to_vec(), vec![got.1[block]]);
            assert_same_blocks(&format!("{name}: block {block}"), &one, &want[block..=block]);
        }
    }
}

#[test]
fn bad_input_is_a_typed_error() {
    let Some((_, ctx)) = contexts().next() else { return };
    let stage = ExpertSwiglu::new(ctx).unwrap();
    let buffer = |bytes| ctx.zeros("test", bytes).unwrap();
    let bind = |entries, n_ff, sizes: [u64; 3]| {
        let [x, codes, scales] = sizes.map(buffer);
        stage.bind(&whole(&x), entries, n_ff, &Q8 { codes, scales }.view()).map(drop)
    };
    let right = [5 * 2 * 64 * 4, 10 * 32, 10 * 8];
    bind(5, 64, right).unwrap();
    assert_invalid("entries", bind(0, 64, right));
    for n_ff in [0, 31, 48, u32::MAX] {
        assert_invalid("n_ff", bind(5, n_ff, right));
    }
    assert_invalid("gate_up", bind(6, 64, right));
    assert_invalid("gate_up", bind(u32::MAX, u32::MAX - 31, right));
    assert_invalid("out.codes", bind(5, 64, [right[0], right[1] - 4, right[2]]));
    assert_invalid("out.scales", bind(5, 64, [right[0], right[1], right[2] - 4]));
    let uniform = ctx.uniform("test", &[0u32; 1024]).unwrap();
    let out = Q8 { codes: buffer(right[1]), scales: buffer(right[2]) };
    assert_invalid("gate_up", stage.bind(&whole(&uniform), 5, 64, &out.view()));
}
