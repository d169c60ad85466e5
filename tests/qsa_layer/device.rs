//! The parts that need an adapter: limits, lost devices, a caller's own device and buffers, wrong device memory.

use std::sync::mpsc;

use pollster::block_on;
use samebits::gpu::{
    AdapterChoice, Arithmetic, Binding, Context, Kernel, Limits, Lowering, LoweringChoice, Options, Verdict,
};
use samebits::stages::{
    DecodeBuffers, KvBuffers, KvPiece, KvPieces, OutputFormat, QsaAttend, QsaDecode, QsaGather, QsaKeys,
    QsaMerge, QsaScore, QsaScratch, QsaTopk, ROW_TILE, STEPS_BYTES,
};
use samebits::{Error, Step, reference, wgpu};

use super::*;
use crate::common::{Target, assert_same, cells, contexts, open_all, step_buffer, submit, whole};

type Bound<'a> = wgpu::BufferBinding<'a>;

/// As a target that the helpers take.
fn target(context: &Context) -> Target {
    Target {
        name: format!("{} [{}]", context.info().name, context.lowering()),
        backend: Backend::Wgpu(context.clone()),
    }
}

fn pieces(context: &Context, shape: &QsaShape, cache: &OwnedCache) -> usize {
    QsaKeys::import(context, shape, &cache.pooled, &cache.dead).unwrap().pieces()
}

/// Keys and cells in three and more pieces each, the cells gathered: the same bytes, and the split is invisible.
#[test]
fn arrays_beyond_a_binding_are_split() {
    let shape = QsaShape { q_heads: 2, kv_heads: 1, ..SMALL };
    let mut random = Random::new(20);
    let limit = 65_536;
    let cases: Vec<_> = [KvFormat::F16, KvFormat::Int8]
        .into_iter()
        .map(|format| {
            let cache = OwnedCache::random(&mut random, &shape, format, 1603);
            let window = OwnedWindow::random(&mut random, &shape, &[1602, 1601, 777, 40], true);
            let want = oracle(&shape, &cache, &window);
            (format, cache, window, want)
        })
        .collect();
    for context in open_all(&Options { max_binding: Some(limit), ..Options::default() }) {
        let target = target(&context);
        for (format, cache, window, want) in &cases {
            assert!(pieces(&context, &shape, cache) >= 3);
            let bytes = cache.view().slots(&shape) as u64 * if *format == KvFormat::F16 { 256 } else { 128 };
            assert!(bytes > 2 * limit, "at least three pieces");
            let mut layer = target.layer(&shape, cache);
            for _ in 0..3 {
                let got = layer.decode_traced(&window.view()).unwrap();
                assert_same_trace(&format!("{}: {format:?}", target.name), &got, want);
            }
        }
    }
}

/// Arrays of exactly one binding and of a little more; what must be found lies in their last elements.
#[test]
fn the_last_element_at_the_limit_is_read() {
    let shape = QsaShape { q_heads: 2, kv_heads: 1, budget: 8, ..SMALL };
    let limit = 131_072u64;
    // Keys take 512 bytes a block and the dead key's, cells 256 bytes.
    for (n_kv, key_pieces, kv_bytes) in
        [(1020, 1, 261_120), (1024, 2, 262_144), (512, 1, limit), (516, 1, limit + 1024)]
    {
        let mut random = Random::new(u64::from(n_kv));
        let mut cache = OwnedCache::random(&mut random, &shape, KvFormat::F16, n_kv);
        cache.page_table = (0..n_kv / 4).collect();
        let window = OwnedWindow::random(&mut random, &shape, &[n_kv - 1], false);
        // The last block looks like the query, so that it is selected; without it nothing else would.
        let last = cache.pooled.len() - 128;
        for i in 0..128 {
            cache.pooled[last + i] = 4.0 * window.index_query[i];
        }
        let want = oracle(&shape, &cache, &window);
        assert_eq!(want.ids[0][7..], [n_kv - 4, n_kv - 3, n_kv - 2, n_kv - 1]);
        // The last value of the last cell reaches the result.
        let mut without = cache.clone();
        let OwnedKv::F16(k, v) = &mut without.kv else { unreachable!("made as f16") };
        let end = k.len() - 1;
        assert_eq!(2 * k.len() as u64, kv_bytes);
        v[end] ^= 0x8000;
        assert_ne!(oracle(&shape, &without, &window).attention, want.attention);
        for context in open_all(&Options { max_binding: Some(limit), ..Options::default() }) {
            assert_eq!(pieces(&context, &shape, &cache), key_pieces);
            let target = target(&context);
            let what = format!("{}: {n_kv} cells", target.name);
            assert_same_trace(&what, &target.decode(&shape, &cache, &window), &want);
        }
    }
}

/// Around 65,536 blocks, the longest context, and arrays at and just above 128 MiB. Minutes on a slow adapter, which is
/// left out.
#[test]
fn long_contexts() {
    let shape = QsaShape { q_heads: 2, kv_heads: 1, index_heads: 1, budget: 64, page_size: 64, ..SMALL };
    let options = Options { max_binding: Some(128 << 20), ..Options::default() };
    let contexts: Vec<Context> = open_all(&options)
        .into_iter()
        .filter(|c| {
            let slow = c.info().name.contains("SwiftShader");
            if slow {
                println!("{}: long contexts NOT RUN", c.info().name);
            }
            !slow
        })
        .collect();
    let mut random = Random::new(21);
    for (format, n_kv, positions, key_pieces) in [
        (KvFormat::Int8, 262_147, &[262_142, 262_143, 262_146][..], 1),
        // The last block's key is alone in the second binding; the codes fill one binding to the last byte.
        (KvFormat::Int8, 1_048_576, &[1_048_575, 1_048_573], 2),
        // Keys and values fill one binding each, and the next page needs another.
        (KvFormat::F16, 524_288, &[524_287], 1),
        (KvFormat::F16, 524_289, &[524_288], 1),
    ] {
        let mut cache = OwnedCache::random(&mut random, &shape, format, n_kv);
        cache.page_table = (0..n_kv.div_ceil(64)).collect();
        let window = OwnedWindow::random(&mut random, &shape, positions, false);
        // The last block is selected by the first row that sees it.
        let last = cache.pooled.len() - 128;
        for i in 0..128 {
            cache.pooled[last + i] = 4.0 * window.index_query[i];
        }
        let want = oracle(&shape, &cache, &window);
        let blocks = n_kv / 4;
        for (ids, step) in want.ids.iter().zip(&want.steps) {
            assert_eq!(ids.len(), 67);
            // The tail is always selected; without one it is the last block that was made to be.
            assert!(step.tail() == 0 || *ids.last().unwrap() == step.pos);
        }
        assert!(want.steps[0].n_bid < blocks || want.ids[0].contains(&(blocks * 4 - 1)));
        for context in &contexts {
            let begun = Instant::now();
            assert_eq!(pieces(context, &shape, &cache), key_pieces);
            let target = target(context);
            let what = format!("{}: {n_kv} cells as {format:?}", target.name);
            assert_same_trace(&what, &target.decode(&shape, &cache, &window), &want);
            println!("{what}: {:.1?}", begun.elapsed());
        }
    }
}

/// What WebGPU guarantees everywhere is enough, and without timestamps the host's clock is used and named.
#[test]
fn webgpu_default_limits_and_no_features_suffice() {
    let shape = QsaShape { page_size: 16, ..QsaShape::QWEN38_FLASH_NEXT };
    let mut random = Random::new(22);
    let cache = OwnedCache::random(&mut random, &shape, KvFormat::Int8, 2100);
    let window = OwnedWindow::random(&mut random, &shape, &[2099, 2050], true);
    let want = oracle(&shape, &cache, &window);
    let options =
        Options { limits: Limits::WebGpuDefault, features: wgpu::Features::empty(), ..Options::default() };
    for context in open_all(&options) {
        assert_eq!(context.max_binding(), 128 << 20);
        assert!(!context.has_timestamps());
        assert_eq!(context.lowering().arithmetic, Arithmetic::Guarded);
        let target = target(&context);
        let mut layer = target.layer(&shape, &cache);
        assert_same_trace(&target.name, &layer.decode_traced(&window.view()).unwrap(), &want);
        let profile = layer.profile(&window.view(), 1, 1).unwrap();
        assert!(!profile.device_clock, "{}: the host's clock", target.name);
        let names: Vec<_> = profile.stages.iter().map(|s| s.0).collect();
        assert_eq!(names, ["qsa_score", "qsa_topk", "qsa_attend", "qsa_merge"]);
        assert!(profile.step > 0.0 && profile.stages.iter().all(|s| s.1 > 0.0), "{profile:?}");
        // Profiling leaves no trace in the results.
        assert_same_trace(&target.name, &layer.decode_traced(&window.view()).unwrap(), &want);
    }
}

#[test]
fn profiles_say_whose_clock_it_was() {
    let mut random = Random::new(23);
    let cache = OwnedCache::random(&mut random, &SMALL, KvFormat::F16, 100);
    let window = OwnedWindow::random(&mut random, &SMALL, &[99], false);
    for target in targets() {
        let profile = target.layer(&SMALL, &cache).profile(&window.view(), 2, 2).unwrap();
        let expected = match &target.backend {
            Backend::Wgpu(context) => context.has_timestamps(),
            _ => false,
        };
        assert_eq!(profile.device_clock, expected, "{}", target.name);
        assert_eq!(profile.stages.len(), 4);
    }
}

/// Fails instead of hanging.
fn in_time<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(f()));
    receive.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|e| panic!("{what}: {e}"))
}

/// The device goes while windows are decoded: a typed error, no hang, and what the caller holds makes another layer.
#[test]
fn a_device_lost_in_the_middle() {
    let mut random = Random::new(24);
    let cache = OwnedCache::random(&mut random, &SMALL, KvFormat::F16, 300);
    let window = OwnedWindow::random(&mut random, &SMALL, &[299, 298], false);
    let want = oracle(&SMALL, &cache, &window);
    for context in open_all(&Options::default()) {
        let name = context.info().name.clone();
        let mut layer = target(&context).layer(&SMALL, &cache);
        assert_eq!(layer.decode(&window.view()).unwrap().attention, want.attention);
        let device = context.device().clone();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            device.destroy();
        });
        let (owned, attention) = (window.clone(), want.attention.clone());
        let (mut layer, error) = in_time(&name, move || {
            loop {
                match layer.decode(&owned.view()) {
                    // Until it goes, every result is right.
                    Ok(out) => assert_eq!(out.attention, attention),
                    Err(error) => break (layer, error),
                }
            }
        });
        killer.join().unwrap();
        assert!(matches!(error, Error::DeviceLost { .. }), "{name}: {error:?}");
        println!("{name}: {error}");
        assert!(error.to_string().starts_with("device lost: "), "{error}");
        let (owned, again) = (window.clone(), cache.clone());
        in_time(&name, move || {
            let lost = |what: &str, error: Option<Error>| {
                assert!(matches!(error, Some(Error::DeviceLost { .. })), "{what}: {error:?}");
            };
            lost("decode", layer.decode(&owned.view()).err());
            lost("decode_f16", layer.decode_f16(&owned.view()).err());
            lost("decode_traced", layer.decode_traced(&owned.view()).err());
            lost("profile", layer.profile(&owned.view(), 1, 1).err());
            let backend = Backend::Wgpu(context.clone());
            lost("import", QsaLayer::import(&backend, SMALL, &again.view()).err());
        });
        let fresh = block_on(Context::open(&AdapterChoice::Name(name.clone()), &Options::default())).unwrap();
        assert_same_trace(&name, &target(&fresh).decode(&SMALL, &cache, &window), &want);
    }
}

/// Each adapter's device as an engine would make it, without any feature.
fn own_devices() -> Vec<(wgpu::Device, wgpu::Queue)> {
    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let adapters = block_on(instance.enumerate_adapters(backends));
    adapters.iter().map(|a| block_on(a.request_device(&Default::default())).unwrap()).collect()
}

/// The kernel of an engine: step records from a counter in device memory.
const PREPARE: &str = "
    struct Params { zero: u32, rows: u32, max_width: u32, spare: u32 }
    struct Step { pos: u32, n_kv: u32, n_bid: u32, width: u32 }
    @group(0) @binding(0) var<uniform> params: Params;
    @group(0) @binding(1) var<storage, read_write> counter: array<u32>;
    @group(0) @binding(2) var<storage, read_write> steps: array<Step>;
    @compute @workgroup_size(16)
    fn main(@builtin(local_invocation_index) i: u32) {
        let pos = counter[0] + i;
        var step = Step(0u, 0u, 0u, 0u);
        if (i < params.rows) {
            step = Step(pos, pos + 1u, (pos + 1u) / 4u, min(pos + 1u, params.max_width));
        }
        steps[i] = step;
        storageBarrier();
        workgroupBarrier();
        if (i == 0u) {
            counter[0] += params.rows;
        }
    }";

/// A caller's device, buffers and encoder: several windows in one submission, the step records made on the device, and
/// nothing known to the host but an upper bound of the context.
#[test]
fn a_callers_device_and_encoder() {
    let (rows, windows, n_kv) = (2u32, 3u32, 501u32);
    let mut random = Random::new(25);
    let cache = OwnedCache::random(&mut random, &SMALL, KvFormat::Int8, n_kv);
    let first = n_kv - rows * windows;
    let window = OwnedWindow::random(&mut random, &SMALL, &(first..n_kv).collect::<Vec<_>>(), true);
    let want = oracle(&SMALL, &cache, &window);
    for (device, queue) in own_devices() {
        let ctx = match block_on(Context::from_device(device.clone(), queue, &Options::default())) {
            Ok(ctx) => ctx,
            Err(error) => {
                println!("{}: {error}", device.adapter_info().name);
                continue;
            }
        };
        let name = target(&ctx).name;
        assert_same_trace(&name, &target(&ctx).decode(&SMALL, &cache, &window), &want);

        let OwnedKv::Int8(k, ks, v, vs) = &cache.kv else { unreachable!("made as int8") };
        let arrays = [
            ctx.storage("k", k).unwrap(),
            ctx.storage("ks", ks).unwrap(),
            ctx.storage("v", v).unwrap(),
            ctx.storage("vs", vs).unwrap(),
        ];
        let slots = cache.view().slots(&SMALL) as u32;
        let piece = |i: usize| vec![KvPiece { buffer: whole(&arrays[i]), slots }];
        let pages = ctx.storage("pages", &cache.page_table).unwrap();
        let counter = ctx.storage("counter", &[first]).unwrap();
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::UNIFORM;
        let steps = ctx.buffer("steps", STEPS_BYTES, usage).unwrap();
        let (heads, index) = widths(&SMALL);
        let bytes = |floats: usize| u64::from(rows) * 4 * floats as u64;
        let all = [&window.query, window.gate.as_ref().unwrap(), &window.index_query]
            .map(|data| ctx.storage("all", data).unwrap());
        let one = [heads, heads, index].map(|n| ctx.zeros("one", bytes(n)).unwrap());
        let out = ctx.zeros("out", bytes(heads)).unwrap();
        let all_out = ctx.zeros("all out", bytes(heads) * u64::from(windows)).unwrap();
        let keys = QsaKeys::import(&ctx, &SMALL, &cache.pooled, &cache.dead).unwrap();
        let scratch = QsaScratch::new(&ctx, &SMALL, rows, keys.blocks()).unwrap();
        let all_ids = ctx.zeros("all ids", scratch.ids.size() * u64::from(windows)).unwrap();
        let buffers = DecodeBuffers {
            steps: whole(&steps),
            keys: &keys,
            kv: KvPieces {
                format: KvFormat::Int8,
                k: piece(0),
                k_scale: piece(1),
                v: piece(2),
                v_scale: piece(3),
            },
            page_table: whole(&pages),
            index_query: whole(&one[2]),
            query: whole(&one[0]),
            gate: Some(whole(&one[1])),
            out: whole(&out),
            format: OutputFormat::F32,
        };
        let decode = QsaDecode::new(&ctx, &SMALL, KvFormat::Int8).unwrap();
        let bound = decode.bind(&buffers, &scratch).unwrap();
        let prepare = ctx
            .pipeline(&Kernel {
                name: "prepare",
                sources: &[PREPARE],
                entry: "main",
                bindings: &[Binding::Uniform, Binding::ReadWrite, Binding::ReadWrite],
                constants: &[],
            })
            .unwrap();
        let params = ctx.uniform("params", &[0, rows, SMALL.max_width(), 0]).unwrap();
        let group = prepare
            .bind(&ctx, &[params.as_entire_binding(), counter.as_entire_binding(), steps.as_entire_binding()])
            .unwrap();

        let mut encoder = device.create_command_encoder(&Default::default());
        for w in 0..u64::from(windows) {
            for (from, to) in all.iter().zip(&one) {
                encoder.copy_buffer_to_buffer(from, w * to.size(), to, 0, to.size());
            }
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&prepare.raw);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(1, 1, 1);
            bound.encode(&mut pass, rows, n_kv).unwrap();
            drop(pass);
            encoder.copy_buffer_to_buffer(&out, 0, &all_out, w * out.size(), out.size());
            let size = scratch.ids.size();
            encoder.copy_buffer_to_buffer(&scratch.ids, 0, &all_ids, w * size, size);
        }
        ctx.submit(encoder).unwrap();
        let got: Vec<f32> = ctx.read(&all_out, 0, window.query.len()).unwrap();
        assert_same(&name, &got, &want.attention);
        let stride = QsaTopk::id_stride(&SMALL) as usize;
        let ids: Vec<u32> = ctx.read(&all_ids, 0, stride * (rows * windows) as usize).unwrap();
        for (row, want) in ids.chunks(stride).zip(&want.ids) {
            assert_eq!(row[..want.len()], want[..], "{name}");
        }
        assert_eq!(ctx.read::<u32>(&counter, 0, 1).unwrap(), [n_kv]);

        // What a caller gets wrong is said before anything is recorded.
        let refused = |buffers: DecodeBuffers<'_>, expected: &str| {
            assert_eq!(text(decode.bind(&buffers, &scratch)), expected, "{name}");
        };
        let short_buffer = ctx.zeros("short", 2048).unwrap();
        let short = || whole(&short_buffer);
        refused(
            DecodeBuffers { query: short(), ..copy(&buffers) },
            "query: expected at least 4096 bytes, got 2048 bytes",
        );
        refused(
            DecodeBuffers { gate: Some(short()), ..copy(&buffers) },
            "gate: expected at least 4096 bytes, got 2048 bytes",
        );
        refused(
            DecodeBuffers { index_query: short(), ..copy(&buffers) },
            "index_query: expected at least 3072 bytes, got 2048 bytes",
        );
        refused(
            DecodeBuffers { out: short(), ..copy(&buffers) },
            "out: expected at least 4096 bytes, got 2048 bytes",
        );
        refused(
            DecodeBuffers { kv: KvPieces { k: vec![], ..buffers.kv.clone() }, ..copy(&buffers) },
            "kv.k: expected at least one piece, got none",
        );
        refused(
            DecodeBuffers { kv: KvPieces { format: KvFormat::F16, ..buffers.kv.clone() }, ..copy(&buffers) },
            "kv.format: expected int8, got f16",
        );
        let other = QsaScratch::new(&ctx, &SMALL, rows, 9).unwrap();
        assert_eq!(text(decode.bind(&buffers, &other)), "scratch.blocks: expected 125, got 9");
        assert_eq!(text(QsaScratch::new(&ctx, &SMALL, 0, 9)), "rows: expected 1 to 16, got 0");
        assert_eq!(text(QsaScratch::new(&ctx, &SMALL, 17, 9)), "rows: expected 1 to 16, got 17");
        submit(&ctx, |pass| {
            assert_eq!(text(bound.encode(pass, 0, 1)), "rows: expected 1 to 2, got 0");
            assert_eq!(text(bound.encode(pass, 3, 1)), "rows: expected 1 to 2, got 3");
            assert_eq!(text(bound.encode(pass, 1, 0)), "max_cells: expected 1 to 503, got 0");
            assert_eq!(text(bound.encode(pass, 1, 504)), "max_cells: expected 1 to 503, got 504");
        });
    }
}

/// The same bindings again.
fn copy<'a>(b: &DecodeBuffers<'a>) -> DecodeBuffers<'a> {
    DecodeBuffers {
        steps: b.steps.clone(),
        keys: b.keys,
        kv: b.kv.clone(),
        page_table: b.page_table.clone(),
        index_query: b.index_query.clone(),
        query: b.query.clone(),
        gate: b.gate.clone(),
        out: b.out.clone(),
        format: b.format,
    }
}

/// Buffers that are too small or of another kind, and extents that do not fit, stage by stage.
#[test]
fn what_a_stage_cannot_be_bound_to() {
    // One context will do: nothing here is compiled differently elsewhere, and nothing runs.
    let Some((_, ctx)) = contexts().next() else { return };
    let shape = SMALL;
    let stride = QsaTopk::id_stride(&shape);
    let steps = ctx.buffer("steps", STEPS_BYTES, wgpu::BufferUsages::UNIFORM).unwrap();
    let short_steps = ctx.buffer("steps", STEPS_BYTES - 16, wgpu::BufferUsages::UNIFORM).unwrap();
    let copied = ctx.buffer("copied", 1 << 20, wgpu::BufferUsages::COPY_DST).unwrap();
    let big = ctx.zeros("big", 1 << 20).unwrap();
    let out = ctx.zeros("out", 1 << 20).unwrap();
    let (steps, short_steps, copied) = (whole(&steps), whole(&short_steps), whole(&copied));
    let (big, out) = (whole(&big), whole(&out));
    let cut = |bytes: u64| wgpu::BufferBinding { size: std::num::NonZeroU64::new(bytes), ..big.clone() };
    let short =
        |what: &str, bytes: u64| format!("{what}: expected at least {bytes} bytes, got {} bytes", bytes - 4);
    let kind = |what: &str, usage: &str, got: &str| {
        format!("{what}: expected a buffer with usage BufferUsages({usage}), got BufferUsages({got})")
    };
    let steps_short = "steps: expected at least 256 bytes, got 240 bytes";
    let steps_kind = kind("steps", "UNIFORM", "COPY_SRC | COPY_DST | STORAGE");

    // Scores of 20 blocks.
    let stage = QsaScore::new(ctx, &shape).unwrap();
    let keys = QsaKeys::import(ctx, &shape, &[0.0; 20 * 128], &[0.0; 128]).unwrap();
    let bind = |s: &Bound<'_>, q: &Bound<'_>, o: &Bound<'_>| stage.bind(s, &keys, q, o);
    assert_eq!(text(bind(&short_steps, &big, &out)), steps_short);
    assert_eq!(text(bind(&big, &big, &out)), steps_kind);
    assert_eq!(text(bind(&steps, &cut(1532), &out)), short("index_query", 1536));
    assert_eq!(text(bind(&steps, &copied, &out)), kind("index_query", "STORAGE", "COPY_DST"));
    assert_eq!(text(bind(&steps, &big, &cut(92))), short("scores", 96));
    let score = bind(&steps, &big, &out).unwrap();
    assert_eq!(
        text(QsaKeys::import(ctx, &shape, &[0.0; 100], &[0.0; 128])),
        "pooled: expected a multiple of 128 values, got 100 values"
    );
    assert_eq!(
        text(QsaKeys::import(ctx, &shape, &[0.0; 128], &[0.0; 1])),
        "dead: expected 128 values, got 1 values"
    );

    // Top-k over them.
    let stage = QsaTopk::new(ctx, &shape).unwrap();
    let bind = |s: &Bound<'_>, scores: &Bound<'_>, ids: &Bound<'_>, a: &Bound<'_>, b: &Bound<'_>| {
        stage.bind(s, 20, scores, ids, [a, b])
    };
    assert_eq!(text(bind(&short_steps, &big, &out, &big, &big)), steps_short);
    assert_eq!(text(bind(&big, &big, &out, &big, &big)), steps_kind);
    assert_eq!(text(bind(&steps, &cut(92), &out, &big, &big)), short("scores", 96));
    let id_bytes = 4 * u64::from(stride);
    assert_eq!(text(bind(&steps, &big, &cut(id_bytes - 4), &big, &big)), short("ids", id_bytes));
    assert_eq!(text(bind(&steps, &big, &out, &cut(12), &big)), short("scratch", 16));
    assert_eq!(text(bind(&steps, &big, &out, &big, &copied)), kind("scratch", "STORAGE", "COPY_DST"));
    let spare = ctx.zeros("scratch", 16).unwrap();
    let topk = bind(&steps, &big, &out, &whole(&spare), &whole(&spare)).unwrap();

    // Attention over 8 cells.
    let stage = QsaAttend::new(ctx, &shape, KvFormat::Int8).unwrap();
    let kv = KvBuffers {
        format: KvFormat::Int8,
        slots: 8,
        k: big.clone(),
        k_scale: big.clone(),
        v: big.clone(),
        v_scale: big.clone(),
    };
    let bind = |s: &Bound<'_>,
                ids: &Bound<'_>,
                pages: &Bound<'_>,
                q: &Bound<'_>,
                kv: &KvBuffers<'_>,
                o: &Bound<'_>| { stage.bind(s, ids, pages, q, kv, false, o) };
    assert_eq!(text(bind(&short_steps, &big, &big, &big, &kv, &out)), steps_short);
    assert_eq!(text(bind(&big, &big, &big, &big, &kv, &out)), steps_kind);
    assert_eq!(text(bind(&steps, &cut(id_bytes - 4), &big, &big, &kv, &out)), short("ids", id_bytes));
    assert_eq!(text(bind(&steps, &big, &copied, &big, &kv, &out)), kind("page_table", "STORAGE", "COPY_DST"));
    assert_eq!(text(bind(&steps, &big, &big, &cut(2044), &kv, &out)), short("query", 2048));
    let partial = 4 * u64::from(shape.max_chunks() * shape.partial_chunk());
    assert_eq!(text(bind(&steps, &big, &big, &big, &kv, &cut(partial - 4))), short("partials", partial));
    for (what, bytes, kv) in [
        ("kv.k", 2048, KvBuffers { k: cut(2044), ..kv.clone() }),
        ("kv.k_scale", 64, KvBuffers { k_scale: cut(60), ..kv.clone() }),
        ("kv.v", 2048, KvBuffers { v: cut(2044), ..kv.clone() }),
        ("kv.v_scale", 64, KvBuffers { v_scale: cut(60), ..kv.clone() }),
    ] {
        assert_eq!(text(bind(&steps, &big, &big, &big, &kv, &out)), short(what, bytes));
    }
    let half = KvBuffers { format: KvFormat::F16, ..kv.clone() };
    assert_eq!(text(bind(&steps, &big, &big, &big, &half, &out)), "kv.format: expected int8, got f16");
    let attend = bind(&steps, &big, &big, &big, &kv, &out).unwrap();

    // Gathering 64 words a cell.
    let stage = QsaGather::new(ctx, &shape).unwrap();
    let bind = |s: &Bound<'_>, ids: &Bound<'_>, pages: &Bound<'_>, piece: Bound<'_>, o: &Bound<'_>| {
        stage.bind(s, ids, pages, &[KvPiece { buffer: piece, slots: 8 }], 64, o)
    };
    assert_eq!(text(bind(&short_steps, &big, &big, big.clone(), &out)), steps_short);
    assert_eq!(text(bind(&steps, &cut(id_bytes - 4), &big, big.clone(), &out)), short("ids", id_bytes));
    assert_eq!(
        text(bind(&steps, &big, &copied, big.clone(), &out)),
        kind("page_table", "STORAGE", "COPY_DST")
    );
    assert_eq!(text(bind(&steps, &big, &big, cut(2044), &out)), short("piece", 2048));
    let gathered = id_bytes * 64;
    assert_eq!(text(bind(&steps, &big, &big, big.clone(), &cut(gathered - 4))), short("gathered", gathered));
    let gather = bind(&steps, &big, &big, big.clone(), &out).unwrap();

    // Merge.
    let stage = QsaMerge::new(ctx, &shape).unwrap();
    let bind =
        |s: &Bound<'_>, p: &Bound<'_>, g: Option<&Bound<'_>>, o: &Bound<'_>, f| stage.bind(s, p, g, o, f);
    assert_eq!(text(bind(&short_steps, &big, None, &out, OutputFormat::F32)), steps_short);
    assert_eq!(text(bind(&big, &big, None, &out, OutputFormat::F32)), steps_kind);
    assert_eq!(
        text(bind(&steps, &cut(partial - 4), None, &out, OutputFormat::F32)),
        short("partials", partial)
    );
    assert_eq!(text(bind(&steps, &big, Some(&cut(2044)), &out, OutputFormat::F32)), short("gate", 2048));
    assert_eq!(text(bind(&steps, &big, None, &cut(2044), OutputFormat::F32)), short("out", 2048));
    assert_eq!(text(bind(&steps, &big, None, &cut(1020), OutputFormat::F16)), short("out", 1024));
    let merge = bind(&steps, &big, None, &out, OutputFormat::F32).unwrap();

    submit(ctx, |pass| {
        for rows in [0, ROW_TILE + 1, u32::MAX] {
            let expected = format!("rows: expected 1 to 16, got {rows}");
            assert_eq!(text(score.encode(pass, rows, 1)), expected);
            assert_eq!(text(topk.encode(pass, rows, 1)), expected);
            assert_eq!(text(attend.encode(pass, rows, 1)), expected);
            assert_eq!(text(gather.encode(pass, rows)), expected);
            assert_eq!(text(merge.encode(pass, rows)), expected);
        }
        for max_cells in [0, 84, u32::MAX] {
            let expected = format!("max_cells: expected 1 to 83, got {max_cells}");
            assert_eq!(text(score.encode(pass, 1, max_cells)), expected);
            assert_eq!(text(topk.encode(pass, 1, max_cells)), expected);
        }
        for max_cells in [0, MAX_CELLS + 1] {
            let expected = format!("max_cells: expected 1 to 1048576, got {max_cells}");
            assert_eq!(text(attend.encode(pass, 1, max_cells)), expected);
        }
    });
}

/// An adapter that does not give the defined bits is refused by case, and the way out is named.
#[test]
fn a_refused_adapter_says_why() {
    let precise = Lowering::ALL[0];
    let options = Options { lowering: LoweringChoice::Exactly(precise), ..Options::default() };
    for context in open_all(&Options { allow_refused: true, ..options.clone() }) {
        let Verdict::Refused { case, detail } = context.verdict() else { continue };
        let name = context.info().name.clone();
        let choice = AdapterChoice::Name(name.clone());
        let expected = format!(
            "adapter {name} refused: {case} under lowering precise: {detail}; use the CPU backend instead"
        );
        assert_eq!(text(Backend::wgpu(&choice, &options)), expected);
        assert!(case.contains("fma") && detail.contains("expected") && detail.contains("got"), "{expected}");
    }
    let error = text(Backend::wgpu(&AdapterChoice::Name("nonexistent".into()), &Options::default()));
    assert!(error.starts_with("no adapter: nonexistent matches none; "), "{error}");
    assert!(error.ends_with("; the CPU backend runs everywhere"), "{error}");
    let error = text(Backend::wgpu(&AdapterChoice::Index(999), &Options::default()));
    assert!(error.starts_with("no adapter: 999 matches none; "), "{error}");
    // And without any GPU there is always a backend.
    Backend::best().unwrap();
}

/// Step records on the device that are garbage: wrong numbers in their row, but the device lives, the other rows are
/// right, and nothing around the output is touched.
#[test]
fn corrupt_step_records_stay_in_their_row() {
    let mut random = Random::new(26);
    let cache = OwnedCache::random(&mut random, &SMALL, KvFormat::F16, 300);
    let window = OwnedWindow::random(&mut random, &SMALL, &[299, 250, 298], true);
    let want = oracle(&SMALL, &cache, &window);
    let OwnedKv::F16(k, v) = &cache.kv else { unreachable!("made as f16") };
    let (heads, _) = widths(&SMALL);
    let max = u32::MAX;
    let good = want.steps[1];
    let corrupt = [
        Step { n_kv: max, ..good },
        Step { n_bid: max, ..good },
        Step { width: max, ..good },
        Step { pos: max, ..good },
        Step { pos: max, n_kv: max, n_bid: max, width: max },
        Step { n_kv: 0, ..good },
        Step { n_kv: max, n_bid: max, ..good },
        Step { n_kv: max, width: max, ..good },
        Step { n_bid: max - 1, width: max, ..good },
        Step { n_kv: 5, n_bid: 100_000, width: 60, ..good },
        Step { width: 0, ..good },
        Step { n_bid: 0, width: max / 2, ..good },
    ];
    for (name, ctx) in contexts() {
        let keys = QsaKeys::import(ctx, &SMALL, &cache.pooled, &cache.dead).unwrap();
        let scratch = QsaScratch::new(ctx, &SMALL, 3, keys.blocks()).unwrap();
        let steps = step_buffer(ctx, &want.steps);
        let [k, v] = [k, v].map(|a| ctx.storage("cells", a).unwrap());
        let pages = ctx.storage("pages", &cache.page_table).unwrap();
        let [query, index_query, gate] = [&window.query, &window.index_query, window.gate.as_ref().unwrap()]
            .map(|a| ctx.storage("queries", a).unwrap());
        // Guard words on both sides of the output.
        let guard = 256;
        let floats = 3 * heads;
        let out = ctx.storage("out", &vec![-7.5f32; floats + 2 * guard]).unwrap();
        let slots = cache.view().slots(&SMALL) as u32;
        let bound = QsaDecode::new(ctx, &SMALL, KvFormat::F16)
            .unwrap()
            .bind(
                &DecodeBuffers {
                    steps: whole(&steps),
                    keys: &keys,
                    kv: KvPieces {
                        format: KvFormat::F16,
                        k: vec![KvPiece { buffer: whole(&k), slots }],
                        k_scale: vec![],
                        v: vec![KvPiece { buffer: whole(&v), slots }],
                        v_scale: vec![],
                    },
                    page_table: whole(&pages),
                    index_query: whole(&index_query),
                    query: whole(&query),
                    gate: Some(whole(&gate)),
                    out: wgpu::BufferBinding {
                        buffer: &out,
                        offset: 4 * guard as u64,
                        size: std::num::NonZeroU64::new(4 * floats as u64),
                    },
                    format: OutputFormat::F32,
                },
                &scratch,
            )
            .unwrap();
        let run = |second: Step| -> Vec<f32> {
            let mut records = [Step::default(); ROW_TILE as usize];
            records[..3].copy_from_slice(&[want.steps[0], second, want.steps[2]]);
            ctx.write(&steps, 0, &records).unwrap();
            submit(ctx, |pass| bound.encode(pass, 3, cells(&want.steps)).unwrap());
            let all: Vec<f32> = ctx.read(&out, 0, floats + 2 * guard).unwrap();
            let around = all[..guard].iter().chain(&all[guard + floats..]);
            assert!(around.copied().all(|x| x == -7.5), "{name}: {second:?} wrote around the output");
            all[guard..guard + floats].to_vec()
        };
        for step in corrupt {
            let begun = Instant::now();
            let got = run(step);
            for r in [0, 2] {
                let part = r * heads..(r + 1) * heads;
                let what = format!("{name}: row {r} beside {step:?}");
                assert_same(&what, &got[part.clone()], &want.attention[part]);
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{name}: {step:?} took {:?}", begun.elapsed());
        }
        ctx.check_alive().unwrap();
        assert_same(&format!("{name}: afterwards"), &run(good), &want.attention);
    }
}

/// The score kernel for adapters that fuse, run where they do not: with small integers every product and sum is exact,
/// so that one rounding or two are the same, and any adapter shows whether the right things are added.
#[test]
fn the_unrolled_scores_of_whole_numbers() {
    let shape = QsaShape::QWEN38_FLASH_NEXT;
    let mut random = Random::new(27);
    let mut whole_numbers =
        |n: usize| -> Vec<f32> { (0..n).map(|_| random.below(17) as f32 - 8.0).collect() };
    let blocks = 300;
    let (pooled, dead) = (whole_numbers(blocks * 128), whole_numbers(128));
    let queries = whole_numbers(16 * 512);
    for lowering in [Lowering::ALL[0]] {
        let options = Options {
            lowering: LoweringChoice::Exactly(lowering),
            allow_refused: true,
            ..Options::default()
        };
        for context in open_all(&options) {
            let target = target(&context);
            for rows in [1, 2, 3, 4, 5, 8, 16] {
                let steps: Vec<Step> = (0..rows).map(|r| shape.step(1202 - 37 * r as u32).unwrap()).collect();
                let got = target.score(&shape, &steps, &pooled, &dead, &queries[..rows * 512], -7.0);
                for (r, step) in steps.iter().enumerate() {
                    let want = reference::qsa_score(&shape, step, &pooled, &dead, &queries[r * 512..][..512]);
                    let what = format!("{}: row {r} of {rows}", target.name);
                    assert_same(&what, &got[r][..want.len()], &want);
                    assert!(got[r][want.len()..].iter().all(|&s| s == -7.0), "{what}: wrote beyond");
                }
            }
        }
    }
}

/// Threads that share a device get their own results.
#[test]
fn threads_share_a_device() {
    for (name, ctx) in contexts() {
        std::thread::scope(|scope| {
            for t in 0..4u32 {
                scope.spawn(move || {
                    let buffer = ctx.storage("x", &[t; 64]).unwrap();
                    for i in 0..500 {
                        let got = ctx.read::<u32>(&buffer, 0, 64);
                        assert_eq!(got.as_deref(), Ok(&[t; 64][..]), "{name}: read {i} of thread {t}");
                    }
                });
            }
        });
    }
}

/// A caller's f16 cache in two halves, bound and decoded once under step records of the test's choice.
fn decode_halves(
    ctx: &Context,
    shape: &QsaShape,
    cache: &OwnedCache,
    window: &OwnedWindow,
    records: &[Step],
) -> (Vec<f32>, Vec<f32>) {
    let rows = window.positions.len();
    let OwnedKv::F16(k, v) = &cache.kv else { unreachable!("made as f16") };
    let slots = cache.view().slots(shape) / 2;
    let cell = (shape.kv_heads * shape.head_dim) as usize;
    let halves =
        [k, v].map(|d| [&d[..slots * cell], &d[slots * cell..]].map(|d| ctx.storage("half", d).unwrap()));
    let pieces = |i: usize| -> Vec<_> {
        let last = cache.view().slots(shape) - slots;
        let each = halves[i].iter().zip([slots, last]);
        each.map(|(b, slots)| KvPiece { buffer: whole(b), slots: slots as u32 }).collect()
    };
    let keys = QsaKeys::import(ctx, shape, &cache.pooled, &cache.dead).unwrap();
    let scratch = QsaScratch::new(ctx, shape, rows as u32, keys.blocks()).unwrap();
    let steps = step_buffer(ctx, records);
    let pages = ctx.storage("pages", &cache.page_table).unwrap();
    let query = ctx.storage("query", &window.query).unwrap();
    let index_query = ctx.storage("index_query", &window.index_query).unwrap();
    let out = ctx.zeros("out", 4 * window.query.len() as u64).unwrap();
    let buffers = DecodeBuffers {
        steps: whole(&steps),
        keys: &keys,
        kv: KvPieces { format: KvFormat::F16, k: pieces(0), k_scale: vec![], v: pieces(1), v_scale: vec![] },
        page_table: whole(&pages),
        index_query: whole(&index_query),
        query: whole(&query),
        gate: None,
        out: whole(&out),
        format: OutputFormat::F32,
    };
    let stage = QsaDecode::new(ctx, shape, KvFormat::F16).unwrap();
    let bound = stage.bind(&buffers, &scratch).unwrap();
    submit(ctx, |pass| bound.encode(pass, rows as u32, cache.cells).unwrap());
    let short =
        DecodeBuffers { kv: KvPieces { v: pieces(1)[..1].to_vec(), ..buffers.kv.clone() }, ..buffers };
    assert!(matches!(stage.bind(&short, &scratch), Err(Error::Invalid { what, .. }) if what == "kv.v"));
    let scores = ctx.read(&scratch.scores, 0, rows * QsaScore::stride(keys.blocks()) as usize).unwrap();
    (scores, ctx.read(&out, 0, window.query.len()).unwrap())
}

/// A row's cells that have more words than one dimension of a dispatch can count, as 16 KV heads of 256 f16 have at a
/// budget of 2,048 where that is 65,535 workgroups; here a device with less shows it sooner.
#[test]
fn wide_cells_are_gathered() {
    let shape = QsaShape { q_heads: 16, kv_heads: 16, head_dim: 256, ..SMALL };
    let mut random = Random::new(41);
    let cache = OwnedCache::random(&mut random, &shape, KvFormat::F16, 200);
    let window = OwnedWindow::random(&mut random, &shape, &[199], false);
    let want = oracle(&shape, &cache, &window);
    let limits = wgpu::Limits { max_compute_workgroups_per_dimension: 256, ..Default::default() };
    for ctx in open_all(&Options { limits: Limits::Custom(Box::new(limits)), ..Options::default() }) {
        let (_, out) = decode_halves(&ctx, &shape, &cache, &window, &want.steps);
        assert_same(&ctx.info().name, &out, &want.attention);
    }
}

/// Records beyond the rows of an encoding are not looked at, whatever they hold.
#[test]
fn live_records_beyond_the_rows() {
    let mut random = Random::new(42);
    let cache = OwnedCache::random(&mut random, &SMALL, KvFormat::F16, 300);
    for rows in [1, 3] {
        let window = OwnedWindow::random(&mut random, &SMALL, &vec![299; rows], false);
        let want = oracle(&SMALL, &cache, &window);
        for (name, ctx) in contexts() {
            let (scores, out) = decode_halves(ctx, &SMALL, &cache, &window, &[want.steps[0]; 16]);
            assert_same(name, &scores, &want.scores.concat());
            assert_same(name, &out, &want.attention);
        }
    }
}

/// What a device was not asked to have says nothing about the adapter.
#[test]
fn a_limit_is_no_verdict() {
    for index in 0.. {
        let choice = AdapterChoice::Index(index);
        // With features of its own, so that no other test's probe has the answer already.
        let features = wgpu::Features::TIMESTAMP_QUERY;
        let one = wgpu::Limits { max_compute_invocations_per_workgroup: 1, ..Default::default() };
        let small = Options { limits: Limits::Custom(Box::new(one)), features, ..Options::default() };
        match block_on(Context::open(&choice, &small)) {
            Err(Error::NoAdapter { .. }) => break,
            got => assert!(matches!(got, Err(Error::Limit { .. })), "{got:?}"),
        }
        block_on(Context::open(&choice, &Options { features, ..Options::default() })).unwrap();
    }
}

/// More blocks than the longest context has: an error, not a selection that wraps around.
#[test]
fn too_many_blocks() {
    let most = MAX_CELLS / 4;
    for (_, ctx) in contexts() {
        QsaScratch::new(ctx, &SMALL, 1, most).unwrap();
        for blocks in [most + 1, u32::MAX] {
            let error = QsaScratch::new(ctx, &SMALL, 1, blocks).unwrap_err();
            assert!(matches!(&error, Error::Invalid { what, .. } if what == "blocks"), "{error}");
        }
    }
}
