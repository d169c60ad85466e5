//! Rows of gate and up matrices: every adapter against the oracle, bytes, in every format.

#![cfg(feature = "wgpu")]

mod common;

use common::experts::device::{FILL, Q8, RowsCase, RowsData, Which};
use common::{assert_invalid, assert_same, contexts, open_all, whole};
use samebits::gpu::{Limits, Options};
use samebits::quant::Format;
use samebits::stages::{ExpertGateUp, ExpertGroups, ExpertMatrices, Q8Buffers};
use samebits::{Error, wgpu};

/// The kernel that most tests share: 40 rows are a tile and a quarter.
const FORMAT: Format = Format::Iq2Xxs;
const ROWS: u32 = 40;
const COLUMNS: usize = 512;

fn data(tokens: usize, used: u32, count: u32) -> RowsData {
    RowsData::new(Which::GateUp, FORMAT, ROWS, COLUMNS, tokens, used, count, 1)
}

#[test]
fn every_format() {
    for format in Format::ALL {
        // Groups of one to four and of more.
        let columns = 2 * format.block_values().max(128);
        RowsData::new(Which::GateUp, format, ROWS, columns, 5, 2, 3, 3).case().check_all();
    }
}

#[test]
fn windows() {
    for tokens in 1..=8 {
        data(tokens, 3, 5).case().check_all();
    }
    for used in 1..=10 {
        data(3, used, 16).case().check_all();
    }
}

/// One expert for all; one for each; more experts than entries.
#[test]
fn experts() {
    data(9, 1, 1).case().check_all();
    data(13, 3, 512).case().check_all();
    let mut each = data(12, 1, 12);
    each.experts = (0..12).rev().collect();
    each.case().check_all();
    // One expert with 40 entries among others.
    let mut one = data(40, 2, 9);
    one.experts.iter_mut().step_by(2).for_each(|e| *e = 4);
    one.case().check_all();
}

/// Enough tiles that a workgroup goes through several.
#[test]
fn long_windows() {
    data(300, 10, 512).case().check_all();
}

#[test]
fn groups_of_up_to_four() {
    let data = data(11, 2, 3);
    let want = data.case().want();
    for (name, ctx) in contexts() {
        for most in 1..=4 {
            RowsCase { most, ..data.case() }.check(name, ctx, &want);
        }
    }
}

#[test]
fn row_counts() {
    for rows in [1, 31, 32, 33, 640] {
        RowsData::new(Which::GateUp, Format::Q8_0, rows, 64, 3, 2, 4, 5).case().check_all();
    }
    // Many tiles for each workgroup, and not as many for the last.
    RowsData::new(Which::GateUp, Format::Q8_0, 640, 64, 200, 2, 4, 6).case().check_all();
}

/// Gate and up rows go into one output: nothing is written between them.
#[test]
fn places_in_the_output() {
    let data = data(3, 3, 5);
    for (first_row, out_stride) in [(0, 2 * ROWS), (ROWS, 2 * ROWS), (3, 47)] {
        RowsCase { first_row, out_stride, ..data.case() }.check_all();
    }
}

/// The rows of an entry are left as they are when its expert is not there, and the others are what they are without it.
#[test]
fn experts_that_are_not_there() {
    let mut data = data(7, 3, 6);
    data.experts[4] = 6;
    data.experts[8] = u32::MAX;
    data.experts[9] = 2;
    let case = RowsCase { missing: &[2, 5], ..data.case() };
    assert!(case.want().iter().any(|x| x.to_bits() == FILL), "the case has such entries");
    case.check_all();
}

/// An entry by itself and among 4 or 40 others of its expert: the same bytes.
#[test]
fn an_entry_does_not_see_the_others() {
    for entries in [4, 40] {
        let mut all = data(entries, 1, 3);
        all.experts.fill(1);
        for (name, ctx) in contexts() {
            let together = all.case().run(ctx);
            for i in [0, 1, 3, entries - 1] {
                let alone = RowsCase { x: &all.x[i..=i], experts: &[1], ..all.case() }.run(ctx);
                let among = &together[i * ROWS as usize..][..ROWS as usize];
                assert_same(&format!("{name}: entry {i} of {entries}"), among, &alone);
            }
        }
    }
}

/// Matrices that do not fit one binding, on devices that allow no more than every browser does.
#[test]
fn split_matrices_under_the_least_limits() {
    // A matrix has 5,120 bytes of codes: three to a piece, and the last piece has one.
    let options =
        Options { limits: Limits::WebGpuDefault, max_binding: Some(16 << 10), ..Options::default() };
    let mut data = data(6, 5, 16);
    data.experts[..16].copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    let want = data.case().want();
    for ctx in open_all(&options) {
        let name = &ctx.info().name;
        data.case().check(name, &ctx, &want);
        // Room for the activations of two entries, or of one, beside the codebook.
        for (format, per_group) in [(Format::Iq2Xxs, 2), (Format::Iq2S, 1)] {
            let stage = ExpertGateUp::new(&ctx, format, 2, 2560).unwrap();
            assert_eq!(stage.per_group(), per_group, "{name}: {}", format.name());
            let long = RowsData::new(Which::GateUp, format, 2, 2560, 5, 2, 3, 8);
            long.case().check(name, &ctx, &long.case().want());

            let m = ExpertMatrices::new(&ctx, format, 2, 2560, 3).unwrap();
            let groups = ExpertGroups::new(&ctx, 1, 3, per_group + 1).unwrap();
            let q8 = Q8::new(&ctx, &long.x[0]);
            let out = ctx.zeros("out", 8).unwrap();
            assert_invalid("groups", stage.bind(&m, &q8.view(), 1, &groups, &whole(&out), 0, 2));
        }
        assert_eq!(ExpertGateUp::new(&ctx, FORMAT, ROWS, COLUMNS as u32).unwrap().per_group(), 4);

        let too_long = ExpertGateUp::new(&ctx, Format::Q8_0, 1, 32_768);
        assert!(matches!(too_long, Err(Error::Limit { .. })), "{name}: {too_long:?}");
        let too_large = ExpertMatrices::new(&ctx, Format::Q8_0, 64, 512, 1);
        assert!(matches!(too_large, Err(Error::Limit { .. })), "{name}: {too_large:?}");
    }
}

#[test]
fn bad_sizes_are_typed_errors() {
    let Some((_, ctx)) = contexts().next() else { return };
    let new = |format, rows, columns| ExpertGateUp::new(ctx, format, rows, columns);
    let matrices = |format, rows, columns, slots| ExpertMatrices::new(ctx, format, rows, columns, slots);
    for (format, columns) in [
        (Format::Iq2Xxs, 0),
        (Format::Iq2Xxs, 128),
        (Format::Iq2Xxs, 257),
        (Format::Q2_0, 96),
        (Format::Iq4Nl, 48),
        (Format::Q8_0, 32_768 + 32),
        (Format::Q8_0, u32::MAX - 31),
    ] {
        assert_invalid("columns", new(format, 32, columns));
        assert_invalid("columns", matrices(format, 32, columns, 1));
    }
    assert_invalid("rows", new(Format::Q8_0, 0, 32));
    assert_invalid("rows", matrices(Format::Q8_0, 0, 32, 1));
    assert_invalid("slots", matrices(Format::Q8_0, 1, 32, 0));
    assert!(matches!(matrices(Format::Q8_0, u32::MAX, 32, 1), Err(Error::Limit { .. })));

    let m = matrices(Format::Q8_0, 3, 64, 2).unwrap();
    assert_eq!((m.format(), m.slots()), (Format::Q8_0, 2));
    let row = [1; 68];
    assert_invalid("slot", m.write(2, 0, &row));
    assert_invalid("slot", m.write(u32::MAX, 0, &row));
    assert_invalid("slot", m.read(2));
    assert_invalid("blocks", m.write(0, 0, &row[1..]));
    assert_invalid("blocks", m.write(0, 3, &row));
    assert_invalid("blocks", m.write(0, u32::MAX, &row));
    assert_invalid("blocks", m.write(0, 1, &row.repeat(3)));
    assert_invalid("blocks", m.write(1, 0, &row.repeat(4)));
    // What was refused has written nothing; a part of a matrix is written where it belongs.
    m.write(0, 2, &row).unwrap();
    assert_eq!(m.read(0).unwrap(), [vec![0; 136], row.to_vec()].concat());
    assert_eq!(m.read(1).unwrap(), [0; 204]);
}

#[test]
fn bad_bindings_are_typed_errors() {
    let Some((_, ctx)) = contexts().next() else { return };
    let (rows, columns, slots) = (ROWS, COLUMNS as u32, 2);
    let stage = ExpertGateUp::new(ctx, FORMAT, rows, columns).unwrap();
    let m = ExpertMatrices::new(ctx, FORMAT, rows, columns, slots).unwrap();
    let buffer = |bytes: u64| ctx.zeros("test", bytes).unwrap();
    // Seven entries of four tokens, the last of which has one.
    let groups = ExpertGroups::new(ctx, 7, 2, 4).unwrap();
    let x = Q8 { codes: buffer(4 * 512), scales: buffer(4 * 16 * 8) };
    let out = buffer(4 * 7 * 80);
    let bind = |x: &Q8Buffers<'_>, used, out: &wgpu::Buffer, first_row, out_stride| {
        stage.bind(&m, x, used, &groups, &whole(out), first_row, out_stride)
    };
    bind(&x.view(), 2, &out, 40, 80).unwrap();
    assert_invalid("used", bind(&x.view(), 0, &out, 0, 80));
    assert_invalid("x.codes", bind(&x.view(), 1, &out, 0, 80));
    let short = Q8 { codes: buffer(4 * 512), scales: buffer(4 * 16 * 8 - 4) };
    assert_invalid("x.scales", bind(&short.view(), 2, &out, 0, 80));
    assert_invalid("out_stride", bind(&x.view(), 2, &out, 41, 80));
    assert_invalid("out_stride", bind(&x.view(), 2, &out, 0, 39));
    assert_invalid("out_stride", bind(&x.view(), 2, &out, u32::MAX - 39, 80));
    assert_invalid("out", bind(&x.view(), 2, &out, 0, 81));
    assert_invalid("out", bind(&x.view(), 2, &out, 0, u32::MAX));
    let uniform = ctx.uniform("test", &[0u32; 4096]).unwrap();
    assert_invalid("out", bind(&x.view(), 2, &uniform, 0, 80));
    let view = Q8Buffers { codes: whole(&uniform), ..x.view() };
    assert_invalid("x.codes", bind(&view, 2, &out, 0, 80));

    let other = |format, rows, columns| {
        let m = ExpertMatrices::new(ctx, format, rows, columns, slots).unwrap();
        stage.bind(&m, &x.view(), 2, &groups, &whole(&out), 0, 80)
    };
    assert_invalid("matrices", other(Format::Iq2Xs, rows, columns));
    assert_invalid("matrices", other(FORMAT, rows + 1, columns));
    assert_invalid("matrices", other(FORMAT, rows, columns + 256));
}
