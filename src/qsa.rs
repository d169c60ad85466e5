//! The façade: a QSA layer over a backend.

use std::time::Instant;

use crate::cpu;
#[cfg_attr(not(feature = "wgpu"), allow(unused_imports, reason = "the documentation refers to it"))]
use crate::error::Error;
use crate::error::Result;
use crate::shape::{KvCells, QsaCache, QsaShape, Step, Window};

#[cfg(feature = "wgpu")]
use crate::gpu::{AdapterChoice, Context, Options};

/// Where a layer runs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Backend {
    /// The CPU, all cores.
    Cpu,
    /// A wgpu device whose arithmetic has been proved exact.
    #[cfg(feature = "wgpu")]
    Wgpu(Context),
}

impl Backend {
    /// The fastest backend that gives the defined bits: an adapter that passed the conformance probe, else the CPU.
    /// A software rasteriser is never taken; name it to use it.
    ///
    /// # Errors
    /// None at present: the CPU is always there.
    pub fn best() -> Result<Backend> {
        #[cfg(feature = "wgpu")]
        match pollster::block_on(Context::open(&AdapterChoice::Best, &Options::default())) {
            Ok(context) => return Ok(Backend::Wgpu(context)),
            Err(reason) => log::info!("running on the CPU: {reason}"),
        }
        Ok(Backend::Cpu)
    }

    /// A named adapter.
    ///
    /// # Errors
    /// [`Error::NoAdapter`], [`Error::Refused`] when it does not pass the probe.
    #[cfg(feature = "wgpu")]
    pub fn wgpu(choice: &AdapterChoice, options: &Options) -> Result<Backend> {
        Ok(Backend::Wgpu(pollster::block_on(Context::open(choice, options))?))
    }

    /// `cpu` or `wgpu`.
    pub fn name(&self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(_) => "wgpu",
        }
    }
}

/// The result of a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded<A = f32> {
    /// Of each row the selected cells, ascending; as many as its width.
    pub ids: Vec<Vec<u32>>,
    /// `[T][q_heads][head_dim]`.
    pub attention: Vec<A>,
}

/// A window's result with everything in between, for tests and comparisons.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Of each row the step record.
    pub steps: Vec<Step>,
    /// Of each row the scores of its blocks, the incomplete one last: `n_bid + 1`.
    pub scores: Vec<Vec<f32>>,
    /// Of each row the selected cells.
    pub ids: Vec<Vec<u32>>,
    /// Of each row `[chunks][q_heads][head_dim + 2]`.
    pub partials: Vec<Vec<f32>>,
    /// `[T][q_heads][head_dim]`.
    pub attention: Vec<f32>,
}

/// Time of the stages of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// `true`: the device's timestamps; `false`: the host's clock.
    pub device_clock: bool,
    /// Stage and nanoseconds, median of the runs.
    pub stages: Vec<(&'static str, f64)>,
    /// Nanoseconds of all stages in one submission, median of the runs.
    pub step: f64,
}

/// A layer's cache, and the decoding of windows over it.
///
/// ```standalone_crate
/// use samebits::{Backend, KvCells, QsaCache, QsaLayer, QsaShape, Window};
///
/// let shape = QsaShape { q_heads: 2, kv_heads: 1, head_dim: 128, index_heads: 1, index_dim: 128, budget: 8, page_size: 4 };
/// let cache = QsaCache {
///     cells: 12,
///     pooled: &[0.5; 3 * 128],
///     dead: &[0.0; 128],
///     kv: KvCells::F16 { k: &[0x3c00; 12 * 128], v: &[0x4000; 12 * 128] },
///     page_table: &[2, 0, 1],
/// };
/// let mut layer = QsaLayer::import(&Backend::Cpu, shape, &cache)?;
/// let window = Window { positions: &[11], query: &[1.0; 256], index_query: &[1.0; 128], gate: None };
/// let out = layer.decode(&window)?;
/// assert_eq!(out.ids, [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]);
/// assert!(out.attention.iter().all(|&y| y == 2.0));
/// # Ok::<(), samebits::Error>(())
/// ```
#[derive(Debug)]
pub struct QsaLayer {
    shape: QsaShape,
    cells: u32,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Cpu(CpuCache),
    #[cfg(feature = "wgpu")]
    Wgpu(Box<device::DeviceLayer>),
}

#[derive(Debug)]
struct CpuCache {
    pooled: Vec<f32>,
    dead: Vec<f32>,
    kv: Kv,
    page_table: Vec<u32>,
}

#[derive(Debug)]
enum Kv {
    F16 { k: Vec<u16>, v: Vec<u16> },
    Int8 { k: Vec<i8>, k_scale: Vec<u16>, v: Vec<i8>, v_scale: Vec<u16> },
}

impl Kv {
    fn view(&self) -> KvCells<'_> {
        match self {
            Kv::F16 { k, v } => KvCells::F16 { k, v },
            Kv::Int8 { k, k_scale, v, v_scale } => KvCells::Int8 { k, k_scale, v, v_scale },
        }
    }
}

/// Results of a tile of rows with fixed strides, as the backends write them.
#[derive(Debug, Default)]
struct Tile {
    scores: Vec<f32>,
    score_stride: usize,
    ids: Vec<u32>,
    id_stride: usize,
    partials: Vec<f32>,
    partial_stride: usize,
}

/// What a caller wants beside ids and attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    Result,
    Trace,
}

impl QsaLayer {
    /// Takes a copy of an existing cache onto the backend.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field that does not fit, before anything is submitted;
    /// [`Error::OutOfMemory`], [`Error::Limit`] from the device.
    pub fn import(backend: &Backend, shape: QsaShape, cache: &QsaCache<'_>) -> Result<Self> {
        cache.check(&shape)?;
        let inner = match backend {
            Backend::Cpu => Inner::Cpu(CpuCache {
                pooled: cache.pooled.to_vec(),
                dead: cache.dead.to_vec(),
                kv: match cache.kv {
                    KvCells::F16 { k, v } => Kv::F16 { k: k.to_vec(), v: v.to_vec() },
                    KvCells::Int8 { k, k_scale, v, v_scale } => Kv::Int8 {
                        k: k.to_vec(),
                        k_scale: k_scale.to_vec(),
                        v: v.to_vec(),
                        v_scale: v_scale.to_vec(),
                    },
                },
                page_table: cache.page_table.to_vec(),
            }),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(context) => {
                Inner::Wgpu(Box::new(device::DeviceLayer::import(context, &shape, cache)?))
            }
        };
        Ok(QsaLayer { shape, cells: cache.cells, inner })
    }

    /// The layer's sizes.
    pub fn shape(&self) -> &QsaShape {
        &self.shape
    }

    /// Cells in the cache.
    pub fn cells(&self) -> u32 {
        self.cells
    }

    /// Bytes that the cache takes, and bytes of the scratch of the windows decoded so far.
    pub fn memory(&self) -> (u64, u64) {
        match &self.inner {
            Inner::Cpu(cache) => {
                let kv = match &cache.kv {
                    Kv::F16 { k, v } => 2 * (k.len() + v.len()),
                    Kv::Int8 { k, k_scale, v, v_scale } => {
                        k.len() + v.len() + 2 * (k_scale.len() + v_scale.len())
                    }
                };
                ((kv + 4 * (cache.pooled.len() + cache.dead.len() + cache.page_table.len())) as u64, 0)
            }
            #[cfg(feature = "wgpu")]
            Inner::Wgpu(layer) => layer.memory(),
        }
    }

    /// Decodes a window of T rows.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field, what was expected and what came, before anything is submitted;
    /// [`Error::DeviceLost`] and other device errors, after which the layer can be imported again elsewhere.
    pub fn decode(&mut self, window: &Window<'_>) -> Result<Decoded> {
        let trace = self.run(window, Want::Result, false)?;
        Ok(Decoded { ids: trace.ids, attention: trace.attention })
    }

    /// As [`QsaLayer::decode`], the attention as f16 bits (rounded to nearest even).
    ///
    /// # Errors
    /// As [`QsaLayer::decode`].
    pub fn decode_f16(&mut self, window: &Window<'_>) -> Result<Decoded<u16>> {
        let trace = self.run(window, Want::Result, true)?;
        // On this path a word of `attention` carries f16 bits.
        let attention = trace.attention.iter().map(|y| y.to_bits() as u16).collect();
        Ok(Decoded { ids: trace.ids, attention })
    }

    /// As [`QsaLayer::decode`], with scores and partials.
    ///
    /// # Errors
    /// As [`QsaLayer::decode`].
    pub fn decode_traced(&mut self, window: &Window<'_>) -> Result<Trace> {
        self.run(window, Want::Trace, false)
    }

    /// Times the stages of a window: `runs` runs, of which the median is given, after one that is not counted. Each
    /// run repeats a stage `repeat` times and divides; on the CPU, and on a device without timestamps, the host's
    /// clock is used.
    ///
    /// # Errors
    /// As [`QsaLayer::decode`]; on an adapter, [`Error::Invalid`] when the window has more than 16 rows.
    pub fn profile(&mut self, window: &Window<'_>, runs: usize, repeat: u32) -> Result<Profile> {
        let steps = window.steps(&self.shape, self.cells)?;
        let (runs, repeat) = (runs.max(1), repeat.max(1));
        match &mut self.inner {
            Inner::Cpu(cache) => Ok(profile_cpu(&self.shape, cache, &steps, window, runs, repeat)),
            #[cfg(feature = "wgpu")]
            Inner::Wgpu(layer) => layer.profile(&steps, window, runs, repeat),
        }
    }

    fn run(&mut self, window: &Window<'_>, want: Want, half: bool) -> Result<Trace> {
        let steps = window.steps(&self.shape, self.cells)?;
        let shape = self.shape;
        let mut trace = Trace {
            steps: steps.clone(),
            scores: Vec::new(),
            ids: Vec::new(),
            partials: Vec::new(),
            attention: Vec::new(),
        };
        let heads = (shape.q_heads * shape.head_dim) as usize;
        let index = (shape.index_heads * shape.index_dim) as usize;
        // A long window goes in tiles, so that scratch does not grow with it.
        for (i, steps) in steps.chunks(ROW_TILE).enumerate() {
            let rows = i * ROW_TILE..i * ROW_TILE + steps.len();
            let part = Window {
                positions: &window.positions[rows.clone()],
                query: &window.query[rows.start * heads..rows.end * heads],
                index_query: &window.index_query[rows.start * index..rows.end * index],
                gate: window.gate.map(|g| &g[rows.start * heads..rows.end * heads]),
            };
            let (tile, attention) = match &mut self.inner {
                Inner::Cpu(cache) => run_cpu(&shape, cache, steps, &part, half),
                #[cfg(feature = "wgpu")]
                Inner::Wgpu(layer) => layer.run(steps, &part, want, half)?,
            };
            trace.attention.extend(attention);
            for (r, step) in steps.iter().enumerate() {
                trace.ids.push(tile.ids[r * tile.id_stride..][..step.width as usize].to_vec());
                if want == Want::Trace {
                    trace
                        .scores
                        .push(tile.scores[r * tile.score_stride..][..step.n_bid as usize + 1].to_vec());
                    let floats = (step.chunks() * shape.partial_chunk()) as usize;
                    trace.partials.push(tile.partials[r * tile.partial_stride..][..floats].to_vec());
                }
            }
        }
        Ok(trace)
    }
}

/// Rows that are worked on together.
const ROW_TILE: usize = 16;

impl Tile {
    fn new(shape: &QsaShape, steps: &[Step]) -> Self {
        let blocks = steps.iter().map(|s| s.n_bid).max().unwrap_or(0) as usize;
        let width = steps.iter().map(|s| s.width).max().unwrap_or(0) as usize;
        let chunks = steps.iter().map(Step::chunks).max().unwrap_or(0);
        let (score_stride, id_stride) = (blocks + 1, width);
        let partial_stride = (chunks * shape.partial_chunk()) as usize;
        Tile {
            scores: vec![0.0; steps.len() * score_stride],
            score_stride,
            ids: vec![0; steps.len() * id_stride],
            id_stride,
            partials: vec![0.0; steps.len() * partial_stride],
            partial_stride,
        }
    }
}

impl CpuCache {
    fn score(&self, shape: &QsaShape, steps: &[Step], window: &Window<'_>, tile: &mut Tile) {
        let (pooled, dead) = (&self.pooled, &self.dead);
        cpu::qsa_score(shape, steps, pooled, dead, window.index_query, &mut tile.scores, tile.score_stride);
    }

    fn topk(&self, shape: &QsaShape, steps: &[Step], tile: &mut Tile) {
        cpu::qsa_topk(shape, steps, &tile.scores, tile.score_stride, &mut tile.ids, tile.id_stride);
    }

    fn attend(&self, shape: &QsaShape, steps: &[Step], window: &Window<'_>, tile: &mut Tile) {
        cpu::qsa_attend(
            shape,
            steps,
            &tile.ids,
            tile.id_stride,
            &self.kv.view(),
            &self.page_table,
            window.query,
            &mut tile.partials,
            tile.partial_stride,
        );
    }

    fn merge(&self, shape: &QsaShape, steps: &[Step], window: &Window<'_>, tile: &Tile, out: &mut [f32]) {
        cpu::qsa_merge(shape, steps, &tile.partials, tile.partial_stride, window.gate, out);
    }
}

fn run_cpu(
    shape: &QsaShape,
    cache: &CpuCache,
    steps: &[Step],
    window: &Window<'_>,
    half: bool,
) -> (Tile, Vec<f32>) {
    let mut tile = Tile::new(shape, steps);
    let mut out = vec![0.0; window.query.len()];
    cache.score(shape, steps, window, &mut tile);
    cache.topk(shape, steps, &mut tile);
    cache.attend(shape, steps, window, &mut tile);
    cache.merge(shape, steps, window, &tile, &mut out);
    if half {
        out.iter_mut().for_each(|y| *y = f32::from_bits(crate::exact::f32_to_f16(*y).into()));
    }
    (tile, out)
}

fn profile_cpu(
    shape: &QsaShape,
    cache: &CpuCache,
    steps: &[Step],
    window: &Window<'_>,
    runs: usize,
    repeat: u32,
) -> Profile {
    let mut tile = Tile::new(shape, steps);
    let mut out = vec![0.0; window.query.len()];
    let mut times = [const { Vec::new() }; 5];
    for run in 0..=runs {
        let mut marks = [Instant::now(); 5];
        (0..repeat).for_each(|_| cache.score(shape, steps, window, &mut tile));
        marks[1] = Instant::now();
        (0..repeat).for_each(|_| cache.topk(shape, steps, &mut tile));
        marks[2] = Instant::now();
        (0..repeat).for_each(|_| cache.attend(shape, steps, window, &mut tile));
        marks[3] = Instant::now();
        (0..repeat).for_each(|_| cache.merge(shape, steps, window, &tile, &mut out));
        marks[4] = Instant::now();
        if run > 0 {
            let nanoseconds =
                |i: usize, j: usize| (marks[j] - marks[i]).as_nanos() as f64 / f64::from(repeat);
            (0..4).for_each(|i| times[i].push(nanoseconds(i, i + 1)));
            times[4].push(nanoseconds(0, 4));
        }
    }
    let [score, topk, attend, merge, step] = times.map(median);
    Profile {
        device_clock: false,
        stages: vec![("qsa_score", score), ("qsa_topk", topk), ("qsa_attend", attend), ("qsa_merge", merge)],
        step,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(feature = "wgpu")]
mod device {
    use bytemuck::Pod;
    use wgpu::BufferUsages;

    use super::{Error, Profile, Result, Tile, Want, median};
    use crate::gpu::{Context, TimeSource, Timer};
    use crate::shape::{KvCells, KvFormat, QsaCache, QsaShape, Step, Window};
    use crate::stages::{
        DecodeBuffers, KvPiece, KvPieces, OutputFormat, QsaDecode, QsaDecodeBound, QsaKeys, QsaScore,
        QsaScratch, QsaTopk, ROW_TILE, STEPS_BYTES, Stage,
    };

    /// A cache on a device.
    #[derive(Debug)]
    pub(super) struct DeviceLayer {
        ctx: Context,
        shape: QsaShape,
        decode: QsaDecode,
        format: KvFormat,
        keys: QsaKeys,
        kv: [Array; 4],
        page_table: wgpu::Buffer,
        plan: Option<Plan>,
    }

    /// One of the KV arrays, in pieces that fit a binding.
    #[derive(Debug, Default)]
    struct Array {
        pieces: Vec<(wgpu::Buffer, u32)>,
    }

    impl Array {
        fn import<T: Pod>(ctx: &Context, what: &str, data: &[T], slots: usize) -> Result<Self> {
            let cell = data.len() / slots;
            let room = ctx.max_binding() as usize / (cell * size_of::<T>());
            if room == 0 {
                let (asked, allowed) = ((cell * size_of::<T>()) as u64, ctx.max_binding());
                return Err(Error::Limit { what: what.into(), asked, allowed });
            }
            let pieces = data
                .chunks(room * cell)
                .map(|part| Ok((ctx.storage(what, part)?, (part.len() / cell) as u32)))
                .collect::<Result<_>>()?;
            Ok(Array { pieces })
        }

        fn pieces(&self) -> Vec<KvPiece<'_>> {
            self.pieces
                .iter()
                .map(|(buffer, slots)| KvPiece { buffer: crate::stages::whole(buffer), slots: *slots })
                .collect()
        }

        fn bytes(&self) -> u64 {
            self.pieces.iter().map(|(b, _)| b.size()).sum()
        }
    }

    /// Buffers and bindings for windows of up to `rows` rows.
    #[derive(Debug)]
    struct Plan {
        rows: u32,
        gated: bool,
        half: bool,
        scratch: QsaScratch,
        bound: QsaDecodeBound,
        steps: wgpu::Buffer,
        query: wgpu::Buffer,
        index_query: wgpu::Buffer,
        gate: Option<wgpu::Buffer>,
        out: wgpu::Buffer,
    }

    impl DeviceLayer {
        pub(super) fn import(ctx: &Context, shape: &QsaShape, cache: &QsaCache<'_>) -> Result<Self> {
            ctx.check_alive()?;
            let format = cache.kv.format();
            let slots = cache.slots(shape);
            let kv = match cache.kv {
                KvCells::F16 { k, v } => [
                    Array::import(ctx, "keys", k, slots)?,
                    Array::default(),
                    Array::import(ctx, "values", v, slots)?,
                    Array::default(),
                ],
                KvCells::Int8 { k, k_scale, v, v_scale } => [
                    Array::import(ctx, "keys", k, slots)?,
                    Array::import(ctx, "key scales", k_scale, slots)?,
                    Array::import(ctx, "values", v, slots)?,
                    Array::import(ctx, "value scales", v_scale, slots)?,
                ],
            };
            Ok(DeviceLayer {
                decode: QsaDecode::new(ctx, shape, format)?,
                keys: QsaKeys::import(ctx, shape, cache.pooled, cache.dead)?,
                page_table: ctx.storage("page table", cache.page_table)?,
                ctx: ctx.clone(),
                shape: *shape,
                format,
                kv,
                plan: None,
            })
        }

        pub(super) fn memory(&self) -> (u64, u64) {
            let kv: u64 = self.kv.iter().map(Array::bytes).sum();
            (
                kv + self.keys.bytes() + self.page_table.size(),
                self.plan.as_ref().map_or(0, |p| p.scratch.bytes()),
            )
        }

        /// Makes sure that there are buffers for this kind of window, and fills them.
        fn prepare(&mut self, steps: &[Step], window: &Window<'_>, half: bool) -> Result<&Plan> {
            let rows = steps.len() as u32;
            let gated = window.gate.is_some();
            let fits = |p: &Plan| p.rows >= rows && p.gated == gated && p.half == half;
            if !self.plan.as_ref().is_some_and(fits) {
                // The old buffers go first, so that a tight device has room for the new ones.
                self.plan = None;
                self.plan = Some(self.make_plan(rows, gated, half)?);
            }
            let Some(plan) = &self.plan else { unreachable!("made above") };
            let mut records = [Step::default(); ROW_TILE as usize];
            records[..steps.len()].copy_from_slice(steps);
            self.ctx.write(&plan.steps, 0, &records)?;
            self.ctx.write(&plan.query, 0, window.query)?;
            self.ctx.write(&plan.index_query, 0, window.index_query)?;
            if let (Some(buffer), Some(gate)) = (&plan.gate, window.gate) {
                self.ctx.write(buffer, 0, gate)?;
            }
            Ok(plan)
        }

        fn make_plan(&self, rows: u32, gated: bool, half: bool) -> Result<Plan> {
            let ctx = &self.ctx;
            let shape = &self.shape;
            let heads = u64::from(rows * shape.q_heads * shape.head_dim) * 4;
            let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
            let steps = ctx.buffer("steps", STEPS_BYTES, usage)?;
            let query = ctx.zeros("query", heads)?;
            let index = u64::from(rows * shape.index_heads * shape.index_dim) * 4;
            let index_query = ctx.zeros("index_query", index)?;
            let gate = gated.then(|| ctx.zeros("gate", heads)).transpose()?;
            let out = ctx.zeros("attention", if half { heads / 2 } else { heads })?;
            let scratch = QsaScratch::new(ctx, shape, rows, self.keys.blocks())?;
            let whole = crate::stages::whole;
            let bound = self.decode.bind(
                &DecodeBuffers {
                    steps: whole(&steps),
                    keys: &self.keys,
                    kv: KvPieces {
                        format: self.format,
                        k: self.kv[0].pieces(),
                        k_scale: self.kv[1].pieces(),
                        v: self.kv[2].pieces(),
                        v_scale: self.kv[3].pieces(),
                    },
                    page_table: whole(&self.page_table),
                    index_query: whole(&index_query),
                    query: whole(&query),
                    gate: gate.as_ref().map(whole),
                    out: whole(&out),
                    format: if half { OutputFormat::F16 } else { OutputFormat::F32 },
                },
                &scratch,
            )?;
            Ok(Plan { rows, gated, half, scratch, bound, steps, query, index_query, gate, out })
        }

        pub(super) fn run(
            &mut self,
            steps: &[Step],
            window: &Window<'_>,
            want: Want,
            half: bool,
        ) -> Result<(Tile, Vec<f32>)> {
            self.ctx.check_alive()?;
            let shape = self.shape;
            let blocks = self.keys.blocks();
            let rows = steps.len();
            let cells = steps.iter().map(|s| s.n_kv).max().unwrap_or(1);
            let ctx = self.ctx.clone();
            let plan = self.prepare(steps, window, half)?;
            let mut encoder = ctx.device().create_command_encoder(&Default::default());
            {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                plan.bound.encode(&mut pass, rows as u32, cells)?;
            }
            ctx.submit(encoder)?;

            let id_stride = QsaTopk::id_stride(&shape) as usize;
            let mut tile =
                Tile { ids: ctx.read(&plan.scratch.ids, 0, rows * id_stride)?, id_stride, ..Tile::default() };
            if want == Want::Trace {
                tile.score_stride = QsaScore::stride(blocks) as usize;
                tile.scores = ctx.read(&plan.scratch.scores, 0, rows * tile.score_stride)?;
                tile.partial_stride = (shape.max_chunks() * shape.partial_chunk()) as usize;
                tile.partials = ctx.read(&plan.scratch.partials, 0, rows * tile.partial_stride)?;
            }
            let values = window.query.len();
            let attention = if half {
                let halves: Vec<u16> = ctx.read(&plan.out, 0, values)?;
                halves.into_iter().map(|h| f32::from_bits(h.into())).collect()
            } else {
                ctx.read(&plan.out, 0, values)?
            };
            Ok((tile, attention))
        }

        pub(super) fn profile(
            &mut self,
            steps: &[Step],
            window: &Window<'_>,
            runs: usize,
            repeat: u32,
        ) -> Result<Profile> {
            crate::error::check(
                steps.len() <= ROW_TILE as usize,
                "window.positions",
                format!("at most {ROW_TILE} rows in a profile"),
                steps.len(),
            )?;
            let ctx = self.ctx.clone();
            let rows = steps.len() as u32;
            let cells = steps.iter().map(|s| s.n_kv).max().unwrap_or(1);
            let plan = self.prepare(steps, window, false)?;
            let mut timer = Timer::new(&ctx, 5)?;
            let mut times = [const { Vec::new() }; 5];
            for run in 0..=runs {
                let mut encoder = ctx.device().create_command_encoder(&Default::default());
                for stage in Stage::ALL {
                    timer.start(&mut encoder, stage.name())?;
                    {
                        let mut pass = encoder.begin_compute_pass(&Default::default());
                        for _ in 0..repeat {
                            plan.bound.encode_stage(&mut pass, stage, rows, cells)?;
                        }
                    }
                    timer.stop(&mut encoder)?;
                }
                timer.start(&mut encoder, "step")?;
                {
                    let mut pass = encoder.begin_compute_pass(&Default::default());
                    for _ in 0..repeat {
                        plan.bound.encode(&mut pass, rows, cells)?;
                    }
                }
                timer.stop(&mut encoder)?;
                for (times, span) in times.iter_mut().zip(timer.submit(encoder)?) {
                    if run > 0 {
                        times.push(span.nanoseconds / f64::from(repeat));
                    }
                }
            }
            let [score, topk, attend, merge, step] = times.map(median);
            let stages = Stage::ALL.map(Stage::name).into_iter().zip([score, topk, attend, merge]).collect();
            Ok(Profile { device_clock: timer.source() == TimeSource::Gpu, stages, step })
        }
    }
}
