//! What the benches of experts share: a layer of 128 experts of 2560 x 640 in one pair of formats after the other.
//!
//! Each token goes to 8 random experts. *Cold* goes round three copies of the layer and eight routings; *warm* repeats one
//! routing over one copy. The floor is the weights of the distinct experts, read once, over the bandwidth of a copy kernel
//! measured in the same run. *shared* are tokens that all go to the same 32 experts: what another token of a group costs.
//! After the timing all outputs are compared with the reference's, byte for byte.
//!
//! `--formats GATE_UP:DOWN,...` and `--tokens 1,2,4` choose.

use std::collections::BTreeSet;

use samebits::golden::Random;
use samebits::gpu::Context;
use samebits::quant::{Format, Q8Block};
use samebits::stages::{
    ExpertBuffers, ExpertForward, ExpertForwardBound, ExpertScratch, ExpertStage, ExpertWeights,
};
use samebits::{ExpertShape, reference, wgpu};

use super::{argument, copy_bandwidth, open, time, whole};

const N_EMBD: u32 = 2560;
const N_FF: u32 = 640;
const EXPERTS: u32 = 128;
const USED: u32 = 8;
/// Experts with weights of their own; the others repeat them.
const DISTINCT: u32 = 8;
const MAX_TOKENS: u32 = 8;
const COPIES: usize = 3;
const ROUTINGS: usize = 8;

const PAIRS: &str = "iq3_xxs:iq4_nl,iq3_s:q2_0,iq2_xs:iq4_nl,iq2_xxs:q2_0,iq2_s:iq4_nl";

/// Times the stages, each and together if there are several.
pub fn table(stages: &[ExpertStage]) {
    let Some(ctx) = open() else { return };
    let repeat = if ctx.info().device_type == wgpu::DeviceType::Cpu { 1 } else { 96 };
    let bandwidth = copy_bandwidth(&ctx, repeat);
    println!(
        "{USED} of {EXPERTS} experts a token, {N_EMBD} x {N_FF}, copy {:.2} TB/s (read + write), median of 9 runs of {repeat}",
        bandwidth / 1e12
    );
    let pairs = argument("--formats").unwrap_or_else(|| PAIRS.into());
    let tokens = argument("--tokens").unwrap_or_else(|| "1,2,4,8".into());
    for pair in pairs.split(',') {
        let (gate_up, down) = pair.split_once(':').expect("GATE_UP:DOWN");
        let layer = Layer::new(&ctx, format(gate_up), format(down));
        println!(
            "\n{pair}: {:.3} of the blocks' bytes on the device\nstage            T  groups   warm us   cold us  floor us  cold/floor  TB/s cold",
            layer.weights[0].bytes() as f64 / layer.shape_bytes() as f64
        );
        for tokens in tokens.split(',').map(|t| t.parse().expect("a number of tokens")) {
            layer.row(&ctx, bandwidth, repeat, stages, tokens, false);
        }
        for tokens in 1..=4 {
            layer.row(&ctx, bandwidth, repeat, stages, tokens, true);
        }
    }
}

fn format(name: &str) -> Format {
    let found = Format::ALL.into_iter().find(|f| f.name().eq_ignore_ascii_case(name));
    found.unwrap_or_else(|| panic!("no format {name}"))
}

struct Layer {
    shape: ExpertShape,
    forward: ExpertForward,
    weights: Vec<ExpertWeights>,
    x: Vec<f32>,
    quantised: Vec<Vec<Q8Block>>,
    /// Of each token and distinct expert: gate and up, and the output.
    gate_up: Vec<Vec<Vec<f32>>>,
    outs: Vec<Vec<Vec<f32>>>,
}

struct Window {
    bound: ExpertForwardBound,
    scratch: ExpertScratch,
    experts: Vec<u32>,
    weights: Vec<f32>,
    y: wgpu::Buffer,
}

impl Layer {
    fn new(ctx: &Context, gate_up: Format, down: Format) -> Self {
        let shape =
            ExpertShape { n_embd: N_EMBD, n_ff: N_FF, experts: EXPERTS, gate: gate_up, up: gate_up, down };
        let mut random = Random::new(7);
        let blocks = |format: Format| (N_EMBD * N_FF) as usize / format.block_values();
        let matrices: Vec<[Vec<u8>; 3]> = (0..DISTINCT)
            .map(|_| {
                [gate_up, gate_up, down].map(|f| samebits::golden::random_blocks(&mut random, f, blocks(f)))
            })
            .collect();
        let weights: Vec<ExpertWeights> =
            (0..COPIES).map(|_| ExpertWeights::new(ctx, &shape, EXPERTS).unwrap()).collect();
        std::thread::scope(|scope| {
            for weights in &weights {
                let matrices = &matrices;
                scope.spawn(move || {
                    for expert in 0..EXPERTS {
                        let [gate, up, down] = &matrices[(expert % DISTINCT) as usize];
                        weights.write(expert, gate, up, down).unwrap();
                        weights.assign(expert, Some(expert)).unwrap();
                    }
                });
            }
        });
        let x = random.floats((MAX_TOKENS * N_EMBD) as usize, 3.0);
        let quantised: Vec<Vec<Q8Block>> =
            x.chunks(N_EMBD as usize).map(reference::expert_quantize).collect();
        let mut results: Vec<Vec<(Vec<f32>, Vec<f32>)>> = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = quantised
                .iter()
                .map(|x| scope.spawn(|| matrices.iter().map(|m| expert(&shape, m, x)).collect()))
                .collect();
            results = threads.into_iter().map(|t| t.join().unwrap()).collect();
        });
        Layer {
            shape,
            forward: ExpertForward::new(ctx, &shape, None).expect("the stages compile"),
            weights,
            x,
            quantised,
            gate_up: results.iter().map(|t| t.iter().map(|e| e.0.clone()).collect()).collect(),
            outs: results.into_iter().map(|t| t.into_iter().map(|e| e.1).collect()).collect(),
        }
    }

    fn shape_bytes(&self) -> u64 {
        u64::from(EXPERTS) * (2 * self.shape.gate_bytes() + self.shape.down_bytes())
    }

    fn windows(&self, ctx: &Context, tokens: u32, shared: bool) -> Vec<Window> {
        let mut random = Random::new(11);
        let n_x = (tokens * N_EMBD) as usize;
        let x = ctx.storage("x", &self.x[..n_x]).unwrap();
        (0..ROUTINGS)
            .map(|i| {
                let used = if shared { 32 } else { USED };
                let all = random.permutation(EXPERTS);
                let experts: Vec<u32> = (0..tokens)
                    .flat_map(|_| {
                        let of = if shared { all.clone() } else { random.permutation(EXPERTS) };
                        of[..used as usize].to_vec()
                    })
                    .collect();
                let weights = random.floats(experts.len(), 1.0);
                let scratch = self.forward.scratch(tokens, used).unwrap();
                let y = ctx.zeros("y", 4 * n_x as u64).unwrap();
                let ids = ctx.storage("experts", &experts).unwrap();
                let router = ctx.storage("weights", &weights).unwrap();
                let buffers = ExpertBuffers {
                    x: whole(&x),
                    experts: whole(&ids),
                    weights: whole(&router),
                    y: whole(&y),
                };
                let copy = &self.weights[i % COPIES];
                let bound = self.forward.bind(copy, None, &buffers, &scratch).unwrap();
                Window { bound, scratch, experts, weights, y }
            })
            .collect()
    }

    fn row(
        &self,
        ctx: &Context,
        bandwidth: f64,
        repeat: u32,
        stages: &[ExpertStage],
        tokens: u32,
        shared: bool,
    ) {
        let windows = self.windows(ctx, tokens, shared);
        let mut encoder = ctx.device().create_command_encoder(&Default::default());
        for window in &windows {
            window.bound.encode(&mut encoder.begin_compute_pass(&Default::default())).unwrap();
        }
        ctx.submit(encoder).unwrap();
        let groups: Vec<usize> =
            windows.iter().map(|w| w.experts.iter().collect::<BTreeSet<_>>().len()).collect();
        let mean = groups.iter().sum::<usize>() as f64 / groups.len() as f64;
        let mut parts: Vec<(&str, &[ExpertStage])> =
            stages.iter().map(|s| (s.name(), std::slice::from_ref(s))).collect();
        if stages.len() > 1 {
            parts.push(("all", stages));
        }
        for (name, stages) in parts {
            let measure = |copies: usize| {
                time(ctx, repeat, |pass, i| {
                    let window = &windows[i as usize % copies];
                    for &stage in stages {
                        window.bound.encode_stage(pass, stage).unwrap();
                    }
                })
            };
            let (warm, cold) = (measure(1), measure(windows.len()));
            let bytes = stages.iter().map(|&s| self.bytes(s, tokens, &windows[0], mean)).sum::<f64>();
            let floor = bytes / bandwidth * 1e6;
            println!(
                "{name:<16} {tokens} {mean:>7.1}{} {warm:>8.2} {cold:>9.2} {floor:>9.2} {:>11.1} {:>10.2}",
                if shared { " s" } else { "  " },
                cold / floor,
                bytes / cold / 1e6
            );
        }
        for window in &windows {
            self.check(ctx, window, tokens);
        }
    }

    /// Bytes that a stage must move: inputs once, outputs once.
    fn bytes(&self, stage: ExpertStage, tokens: u32, window: &Window, groups: f64) -> f64 {
        let (entries, s) = (window.experts.len() as f64, &self.shape);
        let q8 = |values: u32| f64::from(values) / 32.0 * 40.0;
        let (x, ff) = (f64::from(tokens) * f64::from(N_EMBD) * 4.0, f64::from(N_FF) * 8.0);
        match stage {
            ExpertStage::Quantize => x + f64::from(tokens) * q8(N_EMBD),
            ExpertStage::Group => entries * 4.0 + f64::from(EXPERTS) * 4.0,
            ExpertStage::GateUp => {
                groups * 2.0 * s.gate_bytes() as f64 + f64::from(tokens) * q8(N_EMBD) + entries * ff
            }
            ExpertStage::Swiglu => entries * (ff + q8(N_FF)),
            ExpertStage::Down => {
                groups * s.down_bytes() as f64 + entries * (q8(N_FF) + f64::from(N_EMBD) * 4.0)
            }
            ExpertStage::Combine => entries * f64::from(N_EMBD) * 4.0 + x,
        }
    }

    fn check(&self, ctx: &Context, window: &Window, tokens: u32) {
        let used = window.experts.len() / tokens as usize;
        let mut gate_up = Vec::new();
        let mut outs = Vec::new();
        let mut y = Vec::new();
        for (t, experts) in window.experts.chunks(used).enumerate() {
            let of: Vec<&[f32]> =
                experts.iter().map(|e| self.outs[t][(e % DISTINCT) as usize].as_slice()).collect();
            experts.iter().for_each(|e| gate_up.extend(&self.gate_up[t][(e % DISTINCT) as usize]));
            y.extend(reference::expert_combine(&of, &window.weights[t * used..][..used]));
            outs.extend(of.concat());
        }
        let scales: Vec<[f32; 2]> =
            ctx.read(window.scratch.x().scales.buffer, 0, self.quantised[0].len()).unwrap();
        assert_eq!(scales[0][0], samebits::exact::f16_to_f32(self.quantised[0][0].scale));
        for (what, buffer, want) in [
            ("gate and up", window.scratch.gate_up(), &gate_up),
            ("outputs", window.scratch.outs(), &outs),
            ("y", &window.y, &y),
        ] {
            let got: Vec<u32> = ctx.read(buffer, 0, want.len()).unwrap();
            assert!(
                got == bytemuck::cast_slice::<f32, u32>(want),
                "{what}: the bytes are not the reference's"
            );
        }
    }
}

/// Gate and up of one expert and token, and its output.
fn expert(shape: &ExpertShape, [gate, up, down]: &[Vec<u8>; 3], x: &[Q8Block]) -> (Vec<f32>, Vec<f32>) {
    let g = reference::expert_gate_up(shape.gate, gate, x);
    let u = reference::expert_gate_up(shape.up, up, x);
    let h = reference::expert_quantize(&reference::expert_swiglu(&g, &u));
    (([g, u]).concat(), reference::expert_down(shape.down, down, &h))
}
