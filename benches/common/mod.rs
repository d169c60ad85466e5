//! What the benches share: a cache of 131,072 cells, timing on the device, the floor, and a check of the outputs.
//!
//! A time is the median of nine runs of `REPEAT` encodings each, by the device's timestamps. *Warm* repeats over one
//! cache; *cold* goes round eight copies, more than an L2 holds. The floor is the bytes that must move over the
//! bandwidth of a copy kernel measured in the same run. After the timing the outputs are compared with the CPU
//! backend's, byte for byte.
//!
//! `--adapter N|NAME`, `--lowering L`, `--cells N` choose; anything else on the command line is ignored.
#![allow(dead_code, reason = "each bench uses a part of it")]

pub mod experts;

use samebits::golden::{OwnedCache, OwnedKv, OwnedWindow, Random};
use samebits::gpu::{AdapterChoice, Binding, Context, Kernel, Options, TimeSource, Timer};
use samebits::stages::{
    DecodeBuffers, KvPiece, KvPieces, OutputFormat, QsaDecode, QsaDecodeBound, QsaKeys, QsaScratch, ROW_TILE,
    Stage,
};
use samebits::{KvFormat, QsaShape, Step, cpu, wgpu};

pub const SHAPE: QsaShape = QsaShape::QWEN38_FLASH_NEXT;
const RUNS: usize = 9;
const COPIES: usize = 8;

/// A device with caches on it.
pub struct Bench {
    pub ctx: Context,
    pub cache: OwnedCache,
    cells: u32,
    repeat: u32,
    decode: QsaDecode,
    device: Vec<DeviceCache>,
    bandwidth: f64,
}

struct DeviceCache {
    keys: QsaKeys,
    kv: [wgpu::Buffer; 4],
    pages: wgpu::Buffer,
}

/// A window of T rows bound to every copy of the cache.
pub struct Run {
    pub rows: u32,
    pub steps: Vec<Step>,
    pub window: OwnedWindow,
    bound: Vec<(QsaDecodeBound, QsaScratch, wgpu::Buffer)>,
}

pub fn whole(buffer: &wgpu::Buffer) -> wgpu::BufferBinding<'_> {
    wgpu::BufferBinding { buffer, offset: 0, size: None }
}

pub fn argument(name: &str) -> Option<String> {
    let mut args = std::env::args();
    args.find(|a| a == name).and_then(|_| args.next())
}

/// Opens the adapter and says what it is; `None`, with a message, when there is none.
pub fn open() -> Option<Context> {
    let choice = argument("--adapter").map_or(AdapterChoice::Best, |a| a.parse().unwrap_or_default());
    let lowering = argument("--lowering").map_or(Ok(Default::default()), |l| l.parse());
    let options = Options { lowering: lowering.expect("a lowering"), ..Options::default() };
    match pollster::block_on(Context::open(&choice, &options)) {
        Ok(ctx) => {
            let info = ctx.info();
            println!(
                "adapter {}, driver {} {}, lowering {}, verdict {}",
                info.name,
                info.driver,
                info.driver_info,
                ctx.lowering(),
                ctx.verdict()
            );
            Some(ctx)
        }
        Err(error) => {
            println!("nothing to measure: {error}");
            None
        }
    }
}

impl Bench {
    /// Opens the adapter and puts eight copies of a random cache on it.
    pub fn new(format: KvFormat) -> Option<Bench> {
        let ctx = open()?;
        let cells = argument("--cells").map_or(131_072, |c| c.parse().expect("a number of cells"));
        let software = ctx.info().device_type == wgpu::DeviceType::Cpu;
        let cache = OwnedCache::random(&mut Random::new(1), &SHAPE, format, cells);
        let copies = if software { 1 } else { COPIES };
        let device = (0..copies).map(|_| DeviceCache::new(&ctx, &cache)).collect();
        let decode = QsaDecode::new(&ctx, &SHAPE, format).expect("the stages compile");
        let repeat = if software { 1 } else { 96 };
        let bandwidth = copy_bandwidth(&ctx, repeat);
        let clock = match Timer::new(&ctx, 1).expect("a timer").source() {
            TimeSource::Gpu => "device timestamps",
            TimeSource::Host => "the host's clock",
        };
        println!(
            "{cells} cells, {} KV, copy {:.2} TB/s (read + write), {clock}, median of {RUNS} runs of {repeat}",
            format.name(),
            bandwidth / 1e12
        );
        Some(Bench { ctx, cache, cells, repeat, decode, device, bandwidth })
    }

    /// Binds a window of the last `rows` cells to every copy.
    pub fn window(&self, rows: u32) -> Run {
        let positions: Vec<u32> = (self.cells - rows..self.cells).collect();
        let window = OwnedWindow::random(&mut Random::new(2), &SHAPE, &positions, false);
        let steps = window.view().steps(&SHAPE, self.cells).expect("a valid window");
        let ctx = &self.ctx;
        let mut records = [Step::default(); ROW_TILE as usize];
        records[..steps.len()].copy_from_slice(&steps);
        let records = ctx.uniform("steps", &records).unwrap();
        let query = ctx.storage("query", &window.query).unwrap();
        let index_query = ctx.storage("index_query", &window.index_query).unwrap();
        let bound = self
            .device
            .iter()
            .map(|cache| {
                let scratch = QsaScratch::new(ctx, &SHAPE, rows, cache.keys.blocks()).unwrap();
                let out = ctx.zeros("out", u64::from(rows * SHAPE.q_heads * SHAPE.head_dim) * 4).unwrap();
                let format = self.cache.view().kv.format();
                let slots = self.cache.view().slots(&SHAPE) as u32;
                let piece = |i: usize| vec![KvPiece { buffer: whole(&cache.kv[i]), slots }];
                let buffers = DecodeBuffers {
                    steps: whole(&records),
                    keys: &cache.keys,
                    kv: KvPieces { format, k: piece(0), k_scale: piece(1), v: piece(2), v_scale: piece(3) },
                    page_table: whole(&cache.pages),
                    index_query: whole(&index_query),
                    query: whole(&query),
                    gate: None,
                    out: whole(&out),
                    format: OutputFormat::F32,
                };
                (self.decode.bind(&buffers, &scratch).unwrap(), scratch, out)
            })
            .collect();
        let run = Run { rows, steps, window, bound };
        // Every copy has gone through a whole step once, so that a stage alone finds its input.
        let mut encoder = ctx.device().create_command_encoder(&Default::default());
        for (bound, _, _) in &run.bound {
            bound.encode(&mut encoder.begin_compute_pass(&Default::default()), rows, self.cells).unwrap();
        }
        ctx.submit(encoder).unwrap();
        run
    }

    /// Microseconds of some stages, warm and cold.
    pub fn time(&self, run: &Run, stages: &[Stage]) -> [f64; 2] {
        [1, run.bound.len()].map(|copies| {
            time(&self.ctx, self.repeat, |pass, i| {
                let (bound, _, _) = &run.bound[i as usize % copies];
                for &stage in stages {
                    bound.encode_stage(pass, stage, run.rows, self.cells).unwrap();
                }
            })
        })
    }

    /// Compares all of a window's results on each copy with the CPU backend's.
    pub fn check(&self, run: &Run) {
        let steps = &run.steps;
        let (blocks, rows) = (self.cells as usize / 4, steps.len());
        let view = self.cache.view();
        let score_stride = samebits::stages::QsaScore::stride(blocks as u32) as usize;
        let id_stride = samebits::stages::QsaTopk::id_stride(&SHAPE) as usize;
        let partial_stride = (SHAPE.max_chunks() * SHAPE.partial_chunk()) as usize;
        let mut scores = vec![0f32; rows * score_stride];
        cpu::qsa_score(
            &SHAPE,
            steps,
            view.pooled,
            view.dead,
            &run.window.index_query,
            &mut scores,
            score_stride,
        );
        let mut ids = vec![0u32; rows * id_stride];
        cpu::qsa_topk(&SHAPE, steps, &scores, score_stride, &mut ids, id_stride);
        let mut partials = vec![0f32; rows * partial_stride];
        let query = &run.window.query;
        cpu::qsa_attend(
            &SHAPE,
            steps,
            &ids,
            id_stride,
            &view.kv,
            view.page_table,
            query,
            &mut partials,
            partial_stride,
        );
        let mut out = vec![0f32; query.len()];
        cpu::qsa_merge(&SHAPE, steps, &partials, partial_stride, None, &mut out);
        for (_, scratch, device_out) in &run.bound {
            let got: Vec<f32> = self.ctx.read(&scratch.scores, 0, scores.len()).unwrap();
            same("scores", bytemuck::cast_slice(&got), bytemuck::cast_slice(&scores));
            let got: Vec<u32> = self.ctx.read(&scratch.ids, 0, ids.len()).unwrap();
            same("ids", &got, &ids);
            let got: Vec<f32> = self.ctx.read(&scratch.partials, 0, partials.len()).unwrap();
            same("partials", bytemuck::cast_slice(&got), bytemuck::cast_slice(&partials));
            let got: Vec<f32> = self.ctx.read(device_out, 0, out.len()).unwrap();
            same("attention", bytemuck::cast_slice(&got), bytemuck::cast_slice(&out));
        }
    }

    /// Bytes that a stage must move for `rows` rows: inputs once, outputs once.
    pub fn bytes(&self, stage: Stage, rows: u32) -> f64 {
        let (rows, blocks) = (f64::from(rows), f64::from(self.cells / 4));
        let width = f64::from(SHAPE.max_width().min(self.cells));
        let cell = f64::from(SHAPE.kv_heads * SHAPE.head_dim);
        let kv = match &self.cache.kv {
            OwnedKv::F16(..) => cell * 4.0,
            OwnedKv::Int8(..) => cell * 2.0 * (1.0 + 2.0 / 64.0),
        };
        let query = f64::from(SHAPE.q_heads * SHAPE.head_dim) * 4.0;
        let partials = f64::from(SHAPE.max_chunks() * SHAPE.partial_chunk()) * 4.0;
        match stage {
            Stage::Score => blocks * 512.0 + rows * (blocks * 4.0 + 2048.0),
            Stage::Topk => rows * (blocks * 4.0 + width * 4.0),
            Stage::Attend => rows * (width * (kv + 4.0) + query + partials),
            Stage::Merge => rows * (partials + query),
        }
    }

    /// Prints a table of one stage, or of the whole step, at T = 1, 2, 3, 4 and 8.
    pub fn table(&self, name: &str, stages: &[Stage]) {
        println!("{name:<12} T   warm us   cold us  floor us  warm/floor  warm/T=1");
        let mut first = 0.0;
        for rows in [1, 2, 3, 4, 8] {
            let run = self.window(rows);
            let [warm, cold] = self.time(&run, stages);
            self.check(&run);
            let bytes: f64 = stages.iter().map(|&s| self.bytes(s, rows)).sum();
            let floor = bytes / self.bandwidth * 1e6;
            if rows == 1 {
                first = warm;
            }
            println!(
                "{name:<12} {rows} {warm:>9.2} {cold:>9.2} {floor:>9.2} {:>11.1} {:>9.2}  same bytes as the CPU",
                warm / floor,
                warm / first
            );
        }
    }
}

impl DeviceCache {
    fn new(ctx: &Context, cache: &OwnedCache) -> Self {
        let kv = match &cache.kv {
            OwnedKv::F16(k, v) => [
                ctx.storage("k", k).unwrap(),
                ctx.zeros("none", 16).unwrap(),
                ctx.storage("v", v).unwrap(),
                ctx.zeros("none", 16).unwrap(),
            ],
            OwnedKv::Int8(k, k_scale, v, v_scale) => [
                ctx.storage("k", k).unwrap(),
                ctx.storage("k_scale", k_scale).unwrap(),
                ctx.storage("v", v).unwrap(),
                ctx.storage("v_scale", v_scale).unwrap(),
            ],
        };
        DeviceCache {
            keys: QsaKeys::import(ctx, &SHAPE, &cache.pooled, &cache.dead).unwrap(),
            kv,
            pages: ctx.storage("pages", &cache.page_table).unwrap(),
        }
    }
}

fn same(what: &str, got: &[u32], want: &[u32]) {
    assert!(got == want, "{what}: the device's bytes are not the CPU's");
}

/// Microseconds of one encoding: median of `RUNS` runs of `repeat` after one that is not counted.
pub fn time(ctx: &Context, repeat: u32, encode: impl Fn(&mut wgpu::ComputePass<'_>, u32)) -> f64 {
    let mut timer = Timer::new(ctx, 1).expect("a timer");
    let mut times = Vec::new();
    for run in 0..=RUNS {
        let mut encoder = ctx.device().create_command_encoder(&Default::default());
        timer.start(&mut encoder, "run").unwrap();
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for i in 0..repeat {
                encode(&mut pass, i);
            }
        }
        timer.stop(&mut encoder).unwrap();
        let spans = timer.submit(encoder).expect("the device answers");
        if run > 0 {
            times.push(spans[0].nanoseconds / 1e3 / f64::from(repeat));
        }
    }
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

const COPY: &str = "
struct Params { zero: u32, words: u32, spare0: u32, spare1: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> src: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> dst: array<vec4<u32>>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    for (var i = at.x; i < params.words; i += n.x * 256u) { dst[i] = src[i]; }
}
";

/// Bytes a second of a copy of 128 MiB, read and written.
pub fn copy_bandwidth(ctx: &Context, repeat: u32) -> f64 {
    let bytes = ctx.max_binding().min(128 << 20);
    let [src, dst] = [0, 1].map(|_| ctx.zeros("copy", bytes).unwrap());
    let params = ctx.uniform("copy", &[0u32, (bytes / 16) as u32, 0, 0]).unwrap();
    let kernel = Kernel {
        name: "copy",
        sources: &[COPY],
        entry: "main",
        bindings: &[Binding::Uniform, Binding::Read, Binding::ReadWrite],
        constants: &[],
    };
    let pipeline = ctx.pipeline(&kernel).unwrap();
    let resources = [params.as_entire_binding(), src.as_entire_binding(), dst.as_entire_binding()];
    let group = pipeline.bind(ctx, &resources).unwrap();
    let us = time(ctx, repeat.min(16), |pass, _| {
        pass.set_pipeline(&pipeline.raw);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(16_384, 1, 1);
    });
    2.0 * bytes as f64 / us * 1e6
}
