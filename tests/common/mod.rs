//! The runner: the same cases on every backend that this machine has, bytes compared.
//!
//! A target is the CPU backend, or one adapter under one lowering. Which targets ran is printed; with
//! `SAMEBITS_REQUIRE_GPU=1` it is a failure when no adapter ran.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![cfg_attr(not(feature = "wgpu"), allow(unused_mut, unused_variables, reason = "only adapters need them"))]

pub mod experts;

use samebits::golden::{OwnedCache, OwnedWindow};
use samebits::{KvCells, QsaLayer, QsaShape, Step, Trace, cpu, qsa::Backend, reference};

#[cfg(feature = "wgpu")]
use samebits::gpu::{AdapterChoice, Context, LoweringChoice, Options, Verdict};
#[cfg(feature = "wgpu")]
use samebits::stages::{self, KvBuffers, ROW_TILE};
#[cfg(feature = "wgpu")]
use samebits::wgpu;

/// Where stages run.
pub struct Target {
    pub name: String,
    pub backend: Backend,
}

/// Every target of this machine, opened once.
pub fn targets() -> &'static [Target] {
    static TARGETS: std::sync::OnceLock<Vec<Target>> = std::sync::OnceLock::new();
    TARGETS.get_or_init(|| {
        let cpu = std::iter::once(Target { name: "cpu".into(), backend: Backend::Cpu });
        #[cfg(feature = "wgpu")]
        let targets: Vec<Target> = cpu.chain(adapters()).collect();
        #[cfg(not(feature = "wgpu"))]
        let targets: Vec<Target> = cpu.collect();
        let names: Vec<&str> = targets.iter().map(|t| t.name.as_str()).collect();
        println!("targets: {}", names.join(", "));
        let required = std::env::var_os("SAMEBITS_REQUIRE_GPU").is_some_and(|v| v == "1");
        assert!(!required || targets.len() > 1, "a GPU adapter is required and none ran");
        if targets.len() == 1 {
            println!("no adapter: GPU stages are SKIPPED");
        }
        targets
    })
}

/// The targets that keep subnormals, for data that contains some; prints which ones are left out.
pub fn exact_targets() -> impl Iterator<Item = &'static Target> {
    targets().iter().filter(|t| {
        if !t.exact() {
            println!("{}: flushes subnormals: NOT COMPARED on this data", t.name);
        }
        t.exact()
    })
}

/// Each adapter opened anew with these options, for tests that want a device of their own; prints those that refuse.
#[cfg(feature = "wgpu")]
pub fn open_all(options: &Options) -> Vec<Context> {
    let mut contexts = Vec::new();
    for index in 0.. {
        match pollster::block_on(Context::open(&AdapterChoice::Index(index), options)) {
            Ok(context) => contexts.push(context),
            Err(samebits::Error::NoAdapter { .. }) => break,
            Err(error) => println!("adapter {index}: {error}"),
        }
    }
    let required = std::env::var_os("SAMEBITS_REQUIRE_GPU").is_some_and(|v| v == "1");
    assert!(!required || !contexts.is_empty(), "a GPU adapter is required and none opened");
    if contexts.is_empty() {
        println!("no adapter: SKIPPED");
    }
    contexts
}

/// The adapters' contexts.
#[cfg(feature = "wgpu")]
pub fn contexts() -> impl Iterator<Item = (&'static str, &'static Context)> {
    targets().iter().filter_map(Target::context)
}

/// Those of the adapters that keep subnormals; prints which ones are left out.
#[cfg(feature = "wgpu")]
pub fn exact_contexts() -> impl Iterator<Item = (&'static str, &'static Context)> {
    exact_targets().filter_map(Target::context)
}

/// Each adapter under each lowering that it offers, the same lowering once.
#[cfg(feature = "wgpu")]
fn adapters() -> Vec<Target> {
    let mut found: Vec<Target> = Vec::new();
    for index in 0.. {
        let mut any = false;
        for lowering in [LoweringChoice::Precise, LoweringChoice::Guarded, LoweringChoice::SoftFma] {
            let options = Options { lowering, ..Options::default() };
            match Backend::wgpu(&AdapterChoice::Index(index), &options) {
                Ok(backend) => {
                    any = true;
                    let Backend::Wgpu(context) = &backend else { unreachable!("asked for wgpu") };
                    let name = format!("{} [{}]", context.info().name, context.lowering());
                    if found.iter().all(|t| t.name != name) {
                        found.push(Target { name, backend });
                    }
                }
                Err(samebits::Error::NoAdapter { .. }) => {}
                Err(error) => {
                    any = true;
                    println!("adapter {index} under {lowering}: {error}");
                }
            }
        }
        if !any {
            break;
        }
    }
    found
}

/// Compares floats as bytes.
pub fn assert_same(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    if let Some(i) = (0..got.len()).find(|&i| got[i].to_bits() != want[i].to_bits()) {
        let (g, w) = (got[i], want[i]);
        panic!("{what}: value {i} is {g:e} ({:08x}), not {w:e} ({:08x})", g.to_bits(), w.to_bits());
    }
}

/// The oracle's trace of a window.
pub fn oracle(shape: &QsaShape, cache: &OwnedCache, window: &OwnedWindow) -> Trace {
    let view = cache.view();
    let window = window.view();
    let steps = window.steps(shape, cache.cells).expect("a valid window");
    let (heads, index) =
        ((shape.q_heads * shape.head_dim) as usize, (shape.index_heads * shape.index_dim) as usize);
    let mut trace =
        Trace { steps: steps.clone(), scores: vec![], ids: vec![], partials: vec![], attention: vec![] };
    for (row, step) in steps.iter().enumerate() {
        let query = &window.query[row * heads..][..heads];
        let index_query = &window.index_query[row * index..][..index];
        let gate = window.gate.map(|g| &g[row * heads..][..heads]);
        let scores = reference::qsa_score(shape, step, view.pooled, view.dead, index_query);
        let ids = reference::qsa_topk(shape, step, &scores);
        let partials = reference::qsa_attend(shape, step, &ids, &view.kv, view.page_table, query);
        trace.attention.extend(reference::qsa_merge(shape, &partials, gate));
        trace.scores.push(scores);
        trace.ids.push(ids);
        trace.partials.push(partials);
    }
    trace
}

/// Compares all that a window gave, as bytes.
pub fn assert_same_trace(what: &str, got: &Trace, want: &Trace) {
    assert_eq!(got.steps, want.steps, "{what}: steps");
    for row in 0..want.steps.len() {
        assert_same(&format!("{what}: scores of row {row}"), &got.scores[row], &want.scores[row]);
        assert_eq!(got.ids[row], want.ids[row], "{what}: ids of row {row}");
        assert_same(&format!("{what}: partials of row {row}"), &got.partials[row], &want.partials[row]);
    }
    assert_same(&format!("{what}: attention"), &got.attention, &want.attention);
}

impl Target {
    /// Name and context, of an adapter.
    #[cfg(feature = "wgpu")]
    fn context(&self) -> Option<(&str, &Context)> {
        match &self.backend {
            Backend::Wgpu(context) => Some((&self.name, context)),
            _ => None,
        }
    }

    /// Whether subnormals are kept here too. Where they are flushed, only results without any in them are defined.
    pub fn exact(&self) -> bool {
        match &self.backend {
            Backend::Cpu => true,
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(context) => *context.verdict() == Verdict::Exact,
            _ => unreachable!("no other backend"),
        }
    }

    /// A layer with this cache.
    pub fn layer(&self, shape: &QsaShape, cache: &OwnedCache) -> QsaLayer {
        QsaLayer::import(&self.backend, *shape, &cache.view())
            .unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// A window over a cache.
    pub fn decode(&self, shape: &QsaShape, cache: &OwnedCache, window: &OwnedWindow) -> Trace {
        let mut layer = self.layer(shape, cache);
        layer.decode_traced(&window.view()).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// The score stage alone; rows of `stride` floats that held `fill` before.
    pub fn score(
        &self,
        shape: &QsaShape,
        steps: &[Step],
        pooled: &[f32],
        dead: &[f32],
        queries: &[f32],
        fill: f32,
    ) -> Vec<Vec<f32>> {
        let blocks = pooled.len() / shape.index_dim as usize;
        match &self.backend {
            Backend::Cpu => {
                let stride = blocks + 1;
                let mut scores = vec![fill; steps.len() * stride];
                cpu::qsa_score(shape, steps, pooled, dead, queries, &mut scores, stride);
                scores.chunks(stride).map(<[f32]>::to_vec).collect()
            }
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(ctx) => {
                let stride = stages::QsaScore::stride(blocks as u32) as usize;
                let stage = stages::QsaScore::new(ctx, shape).unwrap();
                let keys = stages::QsaKeys::import(ctx, shape, pooled, dead).unwrap();
                let records = step_buffer(ctx, steps);
                let queries = ctx.storage("queries", queries).unwrap();
                let scores = ctx.storage("scores", &vec![fill; steps.len() * stride]).unwrap();
                let bound = stage.bind(&whole(&records), &keys, &whole(&queries), &whole(&scores)).unwrap();
                submit(ctx, |pass| bound.encode(pass, steps.len() as u32, cells(steps)).unwrap());
                let all: Vec<f32> = ctx.read(&scores, 0, steps.len() * stride).unwrap();
                all.chunks(stride).map(|row| row[..blocks + 1].to_vec()).collect()
            }
            _ => unreachable!("no other backend"),
        }
    }

    /// The top-k stage alone over rows of `blocks + 1` scores; rows of ids that held `fill` before, in full.
    pub fn topk(
        &self,
        shape: &QsaShape,
        steps: &[Step],
        blocks: u32,
        scores: &[Vec<f32>],
        fill: u32,
    ) -> Vec<Vec<u32>> {
        match &self.backend {
            Backend::Cpu => {
                let (stride, id_stride) = (blocks as usize + 1, shape.max_width() as usize);
                let mut flat = vec![f32::NAN; steps.len() * stride];
                for (row, s) in scores.iter().enumerate() {
                    flat[row * stride..][..s.len()].copy_from_slice(s);
                }
                let mut ids = vec![fill; steps.len() * id_stride];
                cpu::qsa_topk(shape, steps, &flat, stride, &mut ids, id_stride);
                ids.chunks(id_stride).map(<[u32]>::to_vec).collect()
            }
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(ctx) => {
                let stride = stages::QsaScore::stride(blocks) as usize;
                let id_stride = stages::QsaTopk::id_stride(shape) as usize;
                // Slots that are no scores hold NaN, the survivors' scratch holds garbage.
                let mut flat = vec![f32::NAN; steps.len() * stride];
                for (row, s) in scores.iter().enumerate() {
                    flat[row * stride..][..s.len()].copy_from_slice(s);
                }
                let stage = stages::QsaTopk::new(ctx, shape).unwrap();
                let records = step_buffer(ctx, steps);
                let flat = ctx.storage("scores", &flat).unwrap();
                let ids = ctx.storage("ids", &vec![fill; steps.len() * id_stride]).unwrap();
                let words = (stages::QsaTopk::scratch_bytes(shape, blocks) / 4) as usize * steps.len();
                let scratch = [1, 2].map(|_| ctx.storage("survivors", &vec![u32::MAX / 3; words]).unwrap());
                let bound = stage
                    .bind(
                        &whole(&records),
                        blocks,
                        &whole(&flat),
                        &whole(&ids),
                        [&whole(&scratch[0]), &whole(&scratch[1])],
                    )
                    .unwrap();
                submit(ctx, |pass| bound.encode(pass, steps.len() as u32, cells(steps)).unwrap());
                let all: Vec<u32> = ctx.read(&ids, 0, steps.len() * id_stride).unwrap();
                all.chunks(id_stride).map(|row| row[..shape.max_width() as usize].to_vec()).collect()
            }
            _ => unreachable!("no other backend"),
        }
    }

    /// The attend stage alone: of each row `[max_chunks][q_heads][head_dim + 2]`, which held `fill` before.
    #[allow(clippy::too_many_arguments, reason = "a stage's inputs")]
    pub fn attend(
        &self,
        shape: &QsaShape,
        steps: &[Step],
        ids: &[Vec<u32>],
        kv: &KvCells<'_>,
        slots: u32,
        page_table: &[u32],
        queries: &[f32],
        fill: f32,
    ) -> Vec<Vec<f32>> {
        let stride = (shape.max_chunks() * shape.partial_chunk()) as usize;
        let id_stride = (shape.max_chunks() * 64) as usize;
        let values = match kv {
            KvCells::F16 { k, .. } => k.len(),
            KvCells::Int8 { k, .. } => k.len(),
        };
        assert_eq!(values, (slots * shape.kv_heads * shape.head_dim) as usize, "cells of the arrays");
        let mut flat = vec![u32::MAX; steps.len() * id_stride];
        for (row, ids) in ids.iter().enumerate() {
            flat[row * id_stride..][..ids.len()].copy_from_slice(ids);
        }
        match &self.backend {
            Backend::Cpu => {
                let mut partials = vec![fill; steps.len() * stride];
                cpu::qsa_attend(
                    shape,
                    steps,
                    &flat,
                    id_stride,
                    kv,
                    page_table,
                    queries,
                    &mut partials,
                    stride,
                );
                partials.chunks(stride).map(<[f32]>::to_vec).collect()
            }
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(ctx) => {
                let stage = stages::QsaAttend::new(ctx, shape, kv.format()).unwrap();
                let records = step_buffer(ctx, steps);
                let ids = ctx.storage("ids", &flat).unwrap();
                let pages = ctx.storage("pages", page_table).unwrap();
                let queries = ctx.storage("queries", queries).unwrap();
                let partials = ctx.storage("partials", &vec![fill; steps.len() * stride]).unwrap();
                let arrays = match kv {
                    KvCells::F16 { k, v } => [
                        ctx.storage("k", k).unwrap(),
                        ctx.zeros("k_scale", 16).unwrap(),
                        ctx.storage("v", v).unwrap(),
                        ctx.zeros("v_scale", 16).unwrap(),
                    ],
                    KvCells::Int8 { k, k_scale, v, v_scale } => [
                        ctx.storage("k", k).unwrap(),
                        ctx.storage("k_scale", k_scale).unwrap(),
                        ctx.storage("v", v).unwrap(),
                        ctx.storage("v_scale", v_scale).unwrap(),
                    ],
                };
                let [k, k_scale, v, v_scale] = arrays.each_ref().map(whole);
                let buffers = KvBuffers { format: kv.format(), slots, k, k_scale, v, v_scale };
                let bound = stage
                    .bind(
                        &whole(&records),
                        &whole(&ids),
                        &whole(&pages),
                        &whole(&queries),
                        &buffers,
                        false,
                        &whole(&partials),
                    )
                    .unwrap();
                submit(ctx, |pass| bound.encode(pass, steps.len() as u32, cells(steps)).unwrap());
                let all: Vec<f32> = ctx.read(&partials, 0, steps.len() * stride).unwrap();
                all.chunks(stride).map(<[f32]>::to_vec).collect()
            }
            _ => unreachable!("no other backend"),
        }
    }

    /// The merge stage alone over rows of `[max_chunks][q_heads][head_dim + 2]`: `[T][q_heads][head_dim]`.
    pub fn merge(
        &self,
        shape: &QsaShape,
        steps: &[Step],
        partials: &[Vec<f32>],
        gates: Option<&[f32]>,
    ) -> Vec<f32> {
        let stride = (shape.max_chunks() * shape.partial_chunk()) as usize;
        let values = steps.len() * (shape.q_heads * shape.head_dim) as usize;
        let flat = partials.concat();
        assert_eq!(flat.len(), steps.len() * stride);
        match &self.backend {
            Backend::Cpu => {
                let mut out = vec![f32::NAN; values];
                cpu::qsa_merge(shape, steps, &flat, stride, gates, &mut out);
                out
            }
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(ctx) => {
                let stage = stages::QsaMerge::new(ctx, shape).unwrap();
                let records = step_buffer(ctx, steps);
                let partials = ctx.storage("partials", &flat).unwrap();
                let gates = gates.map(|g| ctx.storage("gates", g).unwrap());
                let gates = gates.as_ref().map(whole);
                let out = ctx.storage("out", &vec![f32::NAN; values]).unwrap();
                let bound = stage
                    .bind(
                        &whole(&records),
                        &whole(&partials),
                        gates.as_ref(),
                        &whole(&out),
                        stages::OutputFormat::F32,
                    )
                    .unwrap();
                submit(ctx, |pass| bound.encode(pass, steps.len() as u32).unwrap());
                ctx.read(&out, 0, values).unwrap()
            }
            _ => unreachable!("no other backend"),
        }
    }
}

#[cfg(feature = "wgpu")]
pub fn whole(buffer: &wgpu::Buffer) -> wgpu::BufferBinding<'_> {
    wgpu::BufferBinding { buffer, offset: 0, size: None }
}

/// The most cells that a row sees.
pub fn cells(steps: &[Step]) -> u32 {
    steps.iter().map(|s| s.n_kv).max().unwrap()
}

/// Step records on the device, rows beyond the last marked as none.
#[cfg(feature = "wgpu")]
pub fn step_buffer(ctx: &Context, steps: &[Step]) -> wgpu::Buffer {
    let mut records = [Step::default(); ROW_TILE as usize];
    records[..steps.len()].copy_from_slice(steps);
    ctx.uniform("steps", &records).unwrap()
}

#[cfg(feature = "wgpu")]
pub fn submit(ctx: &Context, encode: impl FnOnce(&mut wgpu::ComputePass<'_>)) {
    let mut encoder = ctx.device().create_command_encoder(&Default::default());
    encode(&mut encoder.begin_compute_pass(&Default::default()));
    ctx.submit(encoder).unwrap();
}

/// That a call fails with [`Error::Invalid`](samebits::Error::Invalid) naming this field.
pub fn assert_invalid<T>(field: &str, result: samebits::Result<T>) {
    match result.map(drop) {
        Err(samebits::Error::Invalid { what, .. }) => assert_eq!(what, field),
        other => panic!("{field}: {other:?}"),
    }
}
