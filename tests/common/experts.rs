//! Experts' stages on every target, and inputs for them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use samebits::exact::f16_to_f32;
use samebits::golden::experts::{OwnedExperts, OwnedTokens, digests};
use samebits::quant::Q8Block;
use samebits::{ExpertShape, reference};

/// All that a window's stages give, rows one after the other; see [`digests`](samebits::golden::experts::digests).
#[derive(Debug, Clone, PartialEq)]
pub struct Traced {
    pub quantised: Vec<Q8Block>,
    pub gate_up: Vec<f32>,
    pub gated: Vec<Q8Block>,
    pub down: Vec<f32>,
    pub y: Vec<f32>,
}

impl Traced {
    pub fn digests(&self) -> [String; 5] {
        digests(&self.quantised, &self.gate_up, &self.gated, &self.down, &self.y)
    }
}

/// The oracle's trace of a window.
pub fn oracle(s: &ExpertShape, experts: &OwnedExperts, tokens: &OwnedTokens) -> Traced {
    let (n_embd, used) = (s.n_embd as usize, tokens.used as usize);
    let matrix = |all: &[u8], bytes: u64, expert: usize| {
        let bytes = bytes as usize;
        all[expert * bytes..][..bytes].to_vec()
    };
    let mut traced = Traced { quantised: vec![], gate_up: vec![], gated: vec![], down: vec![], y: vec![] };
    for (token, x) in tokens.x.chunks_exact(n_embd).enumerate() {
        let blocks = reference::expert_quantize(x);
        let mut outs = Vec::new();
        for &expert in &tokens.experts[token * used..][..used] {
            let expert = expert as usize;
            let gate = matrix(&experts.gate, s.gate_bytes(), expert);
            let gate = reference::expert_gate_up(s.gate, &gate, &blocks);
            let up = matrix(&experts.up, s.up_bytes(), expert);
            let up = reference::expert_gate_up(s.up, &up, &blocks);
            let h = reference::expert_quantize(&reference::expert_swiglu(&gate, &up));
            let down = matrix(&experts.down, s.down_bytes(), expert);
            outs.push(reference::expert_down(s.down, &down, &h));
            traced.gate_up.extend(gate.iter().chain(&up));
            traced.gated.extend(h);
        }
        let rows: Vec<&[f32]> = outs.iter().map(Vec::as_slice).collect();
        traced.y.extend(reference::expert_combine(&rows, &tokens.weights[token * used..][..used]));
        traced.down.extend(outs.concat());
        traced.quantised.extend(blocks);
    }
    traced
}

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
    use crate::common::{assert_same, contexts, submit, whole};
    use samebits::exact::f32_to_f16;
    use samebits::golden::{Random, random_blocks};
    use samebits::gpu::Context;
    use samebits::quant::Format;
    use samebits::stages::expert_forward::ExpertBuffers;
    use samebits::stages::expert_group::NO_SLOT;
    use samebits::stages::{
        ExpertDown, ExpertForward, ExpertGateUp, ExpertGroup, ExpertGroups, ExpertMatrices, ExpertQuantize,
        ExpertSwiglu, ExpertWeights, Q8Buffers,
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

    /// A window through one of the two stages of rows.
    #[derive(Clone, Copy)]
    pub struct RowsCase<'a> {
        pub which: Which,
        pub format: Format,
        pub rows: u32,
        /// Of each expert.
        pub matrices: &'a [Vec<u8>],
        /// Experts that are not on the device.
        pub missing: &'a [u32],
        /// A row of blocks for each token (gate and up), or for each entry (down).
        pub x: &'a [Vec<Q8Block>],
        /// Of each entry.
        pub experts: &'a [u32],
        /// Entries of a token.
        pub used: u32,
        /// Entries of a group at most.
        pub most: u32,
        /// Of gate and up: where the rows go, and the floats between entries.
        pub first_row: u32,
        pub out_stride: u32,
    }

    impl RowsCase<'_> {
        /// What every float of the output has to be, [`FILL`] where nothing is written.
        pub fn want(&self) -> Vec<f32> {
            let mut want = vec![f32::from_bits(FILL); self.experts.len() * self.out_stride as usize];
            for (i, &expert) in self.experts.iter().enumerate() {
                if expert as usize >= self.matrices.len() || self.missing.contains(&expert) {
                    continue;
                }
                let matrix = &self.matrices[expert as usize];
                let rows = match self.which {
                    Which::GateUp => {
                        reference::expert_gate_up(self.format, matrix, &self.x[i / self.used as usize])
                    }
                    Which::Down => reference::expert_down(self.format, matrix, &self.x[i]),
                };
                let at = i * self.out_stride as usize + self.first_row as usize;
                want[at..at + rows.len()].copy_from_slice(&rows);
            }
            want
        }

        /// The output of an adapter; what lies beyond it must not have changed.
        pub fn run(&self, ctx: &Context) -> Vec<f32> {
            let &RowsCase { format, rows, out_stride, .. } = self;
            let columns = 32 * self.x[0].len() as u32;
            let count = self.matrices.len() as u32;
            let m = ExpertMatrices::new(ctx, format, rows, columns, count).unwrap();
            // Slots the other way round, so that they are not the experts' numbers.
            let slot = |expert: u32| count - 1 - expert;
            for (expert, matrix) in self.matrices.iter().enumerate() {
                m.write(slot(expert as u32), 0, matrix).unwrap();
            }
            let slots: Vec<u32> =
                (0..count).map(|e| if self.missing.contains(&e) { NO_SLOT } else { slot(e) }).collect();
            let slots = ctx.storage("slots", &slots).unwrap();
            let ids = ctx.storage("experts", self.experts).unwrap();
            let q8 = Q8::new(ctx, &self.x.concat());
            let entries = self.experts.len() as u32;
            let (n, spare) = ((entries * out_stride) as usize, 2 * out_stride as usize);
            let out = ctx.storage("out", &vec![FILL; n + spare]).unwrap();
            let group = ExpertGroup::new(ctx).unwrap();
            let groups = |per_group: u32| {
                let groups = ExpertGroups::new(ctx, entries, count, per_group.min(self.most)).unwrap();
                let bound = group.bind(&whole(&ids), &whole(&slots), count, &groups).unwrap();
                (groups, bound)
            };
            match self.which {
                Which::GateUp => {
                    let stage = ExpertGateUp::new(ctx, format, rows, columns).unwrap();
                    let (groups, group) = groups(stage.per_group());
                    let (x, first_row) = (q8.view(), self.first_row);
                    let bound =
                        stage.bind(&m, &x, self.used, &groups, &whole(&out), first_row, out_stride).unwrap();
                    submit(ctx, |pass| {
                        group.encode(pass).unwrap();
                        bound.encode(pass).unwrap();
                    });
                }
                Which::Down => {
                    let stage = ExpertDown::new(ctx, format, rows, columns).unwrap();
                    let (groups, group) = groups(stage.per_group());
                    let bound = stage.bind(&m, &q8.view(), &groups, &whole(&out)).unwrap();
                    submit(ctx, |pass| {
                        group.encode(pass).unwrap();
                        bound.encode(pass).unwrap();
                    });
                }
            }
            let slot = count / 2;
            let matrix = &self.matrices[(count - 1 - slot) as usize];
            assert_eq!(m.read(slot).unwrap(), *matrix, "the blocks come back");
            let beyond: Vec<u32> = ctx.read(&out, 4 * n as u64, spare).unwrap();
            assert!(beyond.iter().all(|&word| word == FILL), "something wrote beyond the last entry");
            ctx.read(&out, 0, n).unwrap()
        }

        /// Compares an adapter with the oracle.
        pub fn check(&self, name: &str, ctx: &Context, want: &[f32]) {
            let what = format!(
                "{name}: {} {} x {}, {} rows of x, {} entries, {} a token, groups of {}",
                self.format.name(),
                self.rows,
                32 * self.x[0].len(),
                self.x.len(),
                self.experts.len(),
                self.used,
                self.most
            );
            assert_same(&what, &self.run(ctx), want);
        }

        /// Compares every adapter with the oracle.
        pub fn check_all(&self) {
            let want = self.want();
            contexts().for_each(|(name, ctx)| self.check(name, ctx, &want));
        }
    }

    /// Matrices, activations and experts of random windows.
    pub struct RowsData {
        pub which: Which,
        pub format: Format,
        pub rows: u32,
        pub matrices: Vec<Vec<u8>>,
        pub x: Vec<Vec<Q8Block>>,
        pub experts: Vec<u32>,
        pub used: u32,
    }

    impl RowsData {
        /// Each token, of `tokens`, goes to `used` of `count` experts, maybe to one of them twice.
        #[allow(clippy::too_many_arguments, reason = "sizes of a window")]
        pub fn new(
            which: Which,
            format: Format,
            rows: u32,
            columns: usize,
            tokens: usize,
            used: u32,
            count: u32,
            seed: u64,
        ) -> Self {
            let mut random = Random::new(seed);
            let blocks = rows as usize * columns / format.block_values();
            let matrices = (0..count).map(|_| random_blocks(&mut random, format, blocks)).collect();
            let entries = tokens * used as usize;
            let x = (0..if which == Which::GateUp { tokens } else { entries })
                .map(|_| reference::expert_quantize(&random.floats(columns, 3.0)))
                .collect();
            let experts = (0..entries).map(|_| random.below(count)).collect();
            RowsData { which, format, rows, matrices, x, experts, used }
        }

        pub fn case(&self) -> RowsCase<'_> {
            RowsCase {
                which: self.which,
                format: self.format,
                rows: self.rows,
                matrices: &self.matrices,
                missing: &[],
                x: &self.x,
                experts: &self.experts,
                used: self.used,
                most: 4,
                first_row: 0,
                out_stride: self.rows,
            }
        }
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

    /// The trace of a window, all stages in one pass.
    pub fn forward(ctx: &Context, s: &ExpertShape, experts: &OwnedExperts, tokens: &OwnedTokens) -> Traced {
        let weights = ExpertWeights::new(ctx, s, s.experts).unwrap();
        for expert in 0..s.experts {
            let slot = s.experts - 1 - expert;
            let part = |all: &[u8], bytes: u64| {
                let bytes = bytes as usize;
                all[expert as usize * bytes..][..bytes].to_vec()
            };
            let gate = part(&experts.gate, s.gate_bytes());
            let up = part(&experts.up, s.up_bytes());
            let down = part(&experts.down, s.down_bytes());
            weights.write(slot, &gate, &up, &down).unwrap();
            weights.assign(expert, Some(slot)).unwrap();
        }
        let (n, entries) = (tokens.x.len(), tokens.experts.len());
        let [n_embd, n_ff] = [s.n_embd, s.n_ff].map(|n| n as usize);
        let stages = ExpertForward::new(ctx, s, None).unwrap();
        let scratch = stages.scratch((n / n_embd) as u32, tokens.used).unwrap();
        let x = ctx.storage("x", &tokens.x).unwrap();
        let ids = ctx.storage("experts", &tokens.experts).unwrap();
        let factors = ctx.storage("weights", &tokens.weights).unwrap();
        let y = ctx.storage("y", &vec![f32::NAN; n]).unwrap();
        let buffers =
            ExpertBuffers { x: whole(&x), experts: whole(&ids), weights: whole(&factors), y: whole(&y) };
        let bound = stages.bind(&weights, None, &buffers, &scratch).unwrap();
        submit(ctx, |pass| bound.encode(pass).unwrap());
        let blocks = |view: Q8Buffers<'_>, n: usize| -> Vec<Q8Block> {
            let codes: Vec<[i8; 32]> = ctx.read(view.codes.buffer, 0, n).unwrap();
            let scales: Vec<[f32; 2]> = ctx.read(view.scales.buffer, 0, n).unwrap();
            let block = |(codes, [scale, sum]): ([i8; 32], [f32; 2])| Q8Block {
                codes,
                scale: f32_to_f16(scale),
                sum: f32_to_f16(sum),
            };
            codes.into_iter().zip(scales).map(block).collect()
        };
        Traced {
            quantised: blocks(scratch.x(), n / 32),
            gate_up: ctx.read(scratch.gate_up(), 0, 2 * entries * n_ff).unwrap(),
            gated: blocks(scratch.h(), entries * n_ff / 32),
            down: ctx.read(scratch.outs(), 0, entries * n_embd).unwrap(),
            y: ctx.read(&y, 0, n).unwrap(),
        }
    }
}
