//! Rows of down matrices: every adapter against the oracle, bytes. Each entry has its own activations.

#![cfg(feature = "wgpu")]

mod common;

use common::experts::device::{Q8, RowsCase, RowsData, Which};
use common::{assert_invalid, assert_same, contexts, whole};
use samebits::quant::Format;
use samebits::stages::{ExpertDown, ExpertGroups, ExpertMatrices};

const ROWS: u32 = 40;

fn data(format: Format, columns: usize, tokens: usize, used: u32, count: u32) -> RowsData {
    RowsData::new(Which::Down, format, ROWS, columns, tokens, used, count, 2)
}

/// Lengths that are no multiple of 256, whose scales do not fill their last word, with fewer calls than threads.
#[test]
fn short_rows() {
    for (format, columns) in [
        (Format::Iq4Nl, 640),
        (Format::Iq4Nl, 96),
        (Format::Iq4Nl, 32),
        (Format::Q2_0, 640),
        (Format::Q2_0, 64),
        (Format::Q8_0, 32),
        (Format::Q5_1, 640),
        (Format::Q6K, 768),
    ] {
        data(format, columns, 5, 2, 3).case().check_all();
    }
}

#[test]
fn windows() {
    for tokens in 1..=8 {
        data(Format::Iq4Nl, 640, tokens, 2, 4).case().check_all();
    }
    data(Format::Q2_0, 640, 2, 10, 64).case().check_all();
    data(Format::Q2_0, 640, 41, 1, 1).case().check_all();
}

#[test]
fn long_windows() {
    data(Format::Iq4Nl, 640, 300, 10, 512).case().check_all();
}

#[test]
fn experts_that_are_not_there() {
    let mut data = data(Format::Iq4Nl, 640, 5, 3, 6);
    data.experts[4] = 6;
    data.experts[8] = u32::MAX;
    data.experts[9] = 2;
    RowsCase { missing: &[2, 5], ..data.case() }.check_all();
}

#[test]
fn an_entry_does_not_see_the_others() {
    let mut all = data(Format::Q2_0, 640, 40, 1, 3);
    all.experts.fill(1);
    for (name, ctx) in contexts() {
        let together = all.case().run(ctx);
        for i in [0, 2, 39] {
            let alone = RowsCase { x: &all.x[i..=i], experts: &[1], ..all.case() }.run(ctx);
            let among = &together[i * ROWS as usize..][..ROWS as usize];
            assert_same(&format!("{name}: entry {i}"), among, &alone);
        }
    }
}

/// What rows do not share with those of gate and up: activations and outputs of every entry.
#[test]
fn bad_bindings_are_typed_errors() {
    let Some((_, ctx)) = contexts().next() else { return };
    assert_invalid("columns", ExpertDown::new(ctx, Format::Q2_0, 40, 96));
    assert_invalid("rows", ExpertDown::new(ctx, Format::Q2_0, 0, 640));
    let stage = ExpertDown::new(ctx, Format::Q2_0, ROWS, 640).unwrap();
    let m = ExpertMatrices::new(ctx, Format::Q2_0, ROWS, 640, 1).unwrap();
    let buffer = |bytes: u64| ctx.zeros("test", bytes).unwrap();
    let h = Q8 { codes: buffer(7 * 640), scales: buffer(7 * 20 * 8) };
    let out = buffer(7 * 160);
    let groups = |entries| ExpertGroups::new(ctx, entries, 1, 4).unwrap();
    let bind = |entries| stage.bind(&m, &h.view(), &groups(entries), &whole(&out));
    bind(7).unwrap();
    assert_invalid("x.codes", bind(8));
    assert_invalid("out", stage.bind(&m, &h.view(), &groups(7), &whole(&buffer(7 * 160 - 4))));
    let other = ExpertMatrices::new(ctx, Format::Iq4Nl, ROWS, 640, 1).unwrap();
    assert_invalid("matrices", stage.bind(&other, &h.view(), &groups(7), &whole(&out)));
}
