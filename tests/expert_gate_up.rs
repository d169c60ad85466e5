//! Rows of gate and up matrices: every adapter against the oracle, bytes, in every format.

#![cfg(feature = "wgpu")]

mod common;

use common::experts::device::{self, Which};
use common::{assert_same, contexts};
use samebits::golden::{Random, random_blocks};
use samebits::quant::{Format, Q8Block};
use samebits::reference;

fn check(format: Format, rows: u32, columns: usize, tokens: usize, used: usize, count: u32) {
    let mut random = Random::new(3);
    let blocks = rows as usize * columns / format.block_values();
    let matrices: Vec<Vec<u8>> = (0..count).map(|_| random_blocks(&mut random, format, blocks)).collect();
    let x: Vec<Vec<Q8Block>> =
        (0..tokens).map(|_| reference::expert_quantize(&random.floats(columns, 3.0))).collect();
    let experts: Vec<u32> = (0..tokens * used).map(|_| random.below(count)).collect();
    let mut want = Vec::new();
    for (i, &expert) in experts.iter().enumerate() {
        want.extend(reference::expert_gate_up(format, &matrices[expert as usize], &x[i / used]));
    }
    for (name, ctx) in contexts() {
        let got = device::rows(ctx, Which::GateUp, format, rows, &matrices, &x, &experts, used as u32);
        assert_same(&format!("{name}: {} {rows} x {columns}, {tokens} tokens", format.name()), &got, &want);
    }
}

#[test]
fn every_format() {
    for format in Format::ALL {
        // 40 rows: a tile and a quarter. Groups of one to four and of more.
        check(format, 40, 2 * format.block_values().max(128), 5, 2, 3);
    }
}
