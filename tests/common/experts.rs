//! Experts' stages on every target, and inputs for them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use samebits::exact::f16_to_f32;
use samebits::quant::Q8Block;

/// The pairs of scale and sum that a device keeps of blocks.
pub fn device_scales(blocks: &[Q8Block]) -> Vec<[f32; 2]> {
    blocks.iter().map(|b| [f16_to_f32(b.scale), f16_to_f32(b.sum)]).collect()
}

/// The codes of blocks.
pub fn device_codes(blocks: &[Q8Block]) -> Vec<i8> {
    blocks.iter().flat_map(|b| b.codes).collect()
}

/// Compares what a device made with the oracle's blocks, as bytes.
pub fn assert_same_blocks(what: &str, got: &(Vec<i8>, Vec<[f32; 2]>), want: &[Q8Block]) {
    assert_eq!((got.0.len(), got.1.len()), (32 * want.len(), want.len()), "{what}: lengths");
    for (i, block) in want.iter().enumerate() {
        assert_eq!(got.0[32 * i..][..32], block.codes, "{what}: codes of block {i}");
        let bits = |x: [f32; 2]| x.map(f32::to_bits);
        let scales = [f16_to_f32(block.scale), f16_to_f32(block.sum)];
        assert_eq!(bits(got.1[i]), bits(scales), "{what}: {:?}, not {scales:?} of block {i}", got.1[i]);
    }
}

#[cfg(feature = "wgpu")]
pub mod device {
    use super::*;
    use crate::common::{submit, whole};
    use samebits::gpu::Context;
    use samebits::quant::Format;
    use samebits::stages::{
        ExpertDown, ExpertGateUp, ExpertGroup, ExpertGroups, ExpertMatrices, ExpertQuantize, ExpertSwiglu,
        Q8Buffers,
    };
    use samebits::wgpu;

    /// Blocks that an output has beyond those asked for: they must keep what they held.
    const SPARE: usize = 3;
    /// What outputs hold before.
    pub const FILL: u32 = 0x5a5a_5a5a;

    /// Blocks on a device.
    pub struct Q8 {
        pub codes: wgpu::Buffer,
        pub scales: wgpu::Buffer,
    }

    impl Q8 {
        pub fn new(ctx: &Context, blocks: &[Q8Block]) -> Self {
            Q8 {
                codes: ctx.storage("codes", &device_codes(blocks)).unwrap(),
                scales: ctx.storage("scales", &device_scales(blocks)).unwrap(),
            }
        }

        /// Room for blocks, and a few more, full of [`FILL`].
        pub fn filled(ctx: &Context, blocks: usize) -> Self {
            let words = |n: usize| ctx.storage("out", &vec![FILL; n * (blocks + SPARE)]).unwrap();
            Q8 { codes: words(8), scales: words(2) }
        }

        pub fn view(&self) -> Q8Buffers<'_> {
            Q8Buffers { codes: whole(&self.codes), scales: whole(&self.scales) }
        }

        /// The blocks of [`Q8::filled`]; those beyond must not have changed.
        pub fn read(&self, ctx: &Context, blocks: usize) -> (Vec<i8>, Vec<[f32; 2]>) {
            let beyond = |buffer: &wgpu::Buffer, n: usize| {
                let spare: Vec<u32> = ctx.read(buffer, 4 * (n * blocks) as u64, n * SPARE).unwrap();
                assert!(spare.iter().all(|&word| word == FILL), "something wrote beyond the last block");
            };
            beyond(&self.codes, 8);
            beyond(&self.scales, 2);
            (ctx.read(&self.codes, 0, 32 * blocks).unwrap(), ctx.read(&self.scales, 0, blocks).unwrap())
        }
    }

    /// Which of the two stages of rows.
    #[derive(Clone, Copy, PartialEq)]
    pub enum Which {
        GateUp,
        Down,
    }

    /// Rows of every entry, `[entries][rows]`; `x`: a row of blocks for each token (gate and up), or for each entry.
    #[allow(clippy::too_many_arguments, reason = "a stage's inputs")]
    pub fn rows(
        ctx: &Context,
        which: Which,
        format: Format,
        rows: u32,
        matrices: &[Vec<u8>],
        x: &[Vec<Q8Block>],
        experts: &[u32],
        used: u32,
    ) -> Vec<f32> {
        let columns = 32 * x[0].len() as u32;
        let count = matrices.len() as u32;
        let m = ExpertMatrices::new(ctx, format, rows, columns, count).unwrap();
        // Slots the other way round, so that they are not the experts' numbers.
        for (expert, matrix) in matrices.iter().enumerate() {
            m.write(count - 1 - expert as u32, 0, matrix).unwrap();
        }
        let slots: Vec<u32> = (0..count).rev().collect();
        let slots = ctx.storage("slots", &slots).unwrap();
        let ids = ctx.storage("experts", experts).unwrap();
        let q8 = Q8::new(ctx, &x.concat());
        let n = experts.len() * rows as usize;
        let out = ctx.storage("out", &vec![f32::NAN; n]).unwrap();
        let entries = experts.len() as u32;
        let group = ExpertGroup::new(ctx).unwrap();
        match which {
            Which::GateUp => {
                let stage = ExpertGateUp::new(ctx, format, rows, columns).unwrap();
                let groups = ExpertGroups::new(ctx, entries, count, stage.per_group()).unwrap();
                let group = group.bind(&whole(&ids), &whole(&slots), count, &groups).unwrap();
                let bound = stage.bind(&m, &q8.view(), used, &groups, &whole(&out), 0, rows).unwrap();
                submit(ctx, |pass| {
                    group.encode(pass).unwrap();
                    bound.encode(pass).unwrap();
                });
            }
            Which::Down => {
                let stage = ExpertDown::new(ctx, format, rows, columns).unwrap();
                let groups = ExpertGroups::new(ctx, entries, count, stage.per_group()).unwrap();
                let group = group.bind(&whole(&ids), &whole(&slots), count, &groups).unwrap();
                let bound = stage.bind(&m, &q8.view(), &groups, &whole(&out)).unwrap();
                submit(ctx, |pass| {
                    group.encode(pass).unwrap();
                    bound.encode(pass).unwrap();
                });
            }
        }
        assert_eq!(m.read(count - 1).unwrap(), matrices[0], "the blocks come back");
        ctx.read(&out, 0, n).unwrap()
    }

    pub fn quantize(ctx: &Context, x: &[f32]) -> (Vec<i8>, Vec<[f32; 2]>) {
        let blocks = x.len() / 32;
        let (input, out) = (ctx.storage("x", x).unwrap(), Q8::filled(ctx, blocks));
        let bound =
            ExpertQuantize::new(ctx).unwrap().bind(&whole(&input), blocks as u32, &out.view()).unwrap();
        submit(ctx, |pass| bound.encode(pass).unwrap());
        out.read(ctx, blocks)
    }

    /// `gate_up`: `[entries][2][n_ff]`.
    pub fn swiglu(ctx: &Context, gate_up: &[f32], n_ff: usize) -> (Vec<i8>, Vec<[f32; 2]>) {
        let entries = gate_up.len() / n_ff / 2;
        let blocks = entries * n_ff / 32;
        let (input, out) = (ctx.storage("gate_up", gate_up).unwrap(), Q8::filled(ctx, blocks));
        let stage = ExpertSwiglu::new(ctx).unwrap();
        let bound = stage.bind(&whole(&input), entries as u32, n_ff as u32, &out.view()).unwrap();
        submit(ctx, |pass| bound.encode(pass).unwrap());
        out.read(ctx, blocks)
    }
}
