//! The decode step inside an engine's own frame: the engine owns the device, the queue, the buffers and the encoder, and
//! the crate only records dispatches between the engine's.
//!
//! ```text
//! cargo run --release --example caller_encoder -- [adapter index, or part of its name]
//! ```
//!
//! Three windows of two rows are decoded in one submission. The host does not know what is being decoded: the token
//! counter lives in device memory, a kernel of the engine makes the step records and picks the queries, the decode step
//! follows in the same compute pass, and another kernel stores the result and moves the counter on. All that the host
//! gives is an upper bound of the context. At the end the bytes are compared with those of the CPU.
//!
//! Exit status: 0 when they are the same, 1 when any differs, 2 when there is no adapter or it does not pass the
//! conformance probe.

#[path = "common/digest.rs"]
mod digest;
#[path = "common/text.rs"]
mod text;

use std::process::ExitCode;

use samebits::gpu::{Context, Options};
use samebits::stages::{
    DecodeBuffers, KvPiece, KvPieces, OutputFormat, QsaDecode, QsaKeys, QsaScratch, QsaTopk, STEPS_BYTES,
};
use samebits::wgpu::util::{BufferInitDescriptor, DeviceExt};
use samebits::wgpu::{self, BufferUsages};
use samebits::{Backend, KvCells, KvFormat, QsaLayer, QsaShape, Window};
use text::{Text, TextCache, TextWindow};

const SHAPE: QsaShape = QsaShape {
    q_heads: 8,
    kv_heads: 2,
    head_dim: 128,
    index_heads: 4,
    index_dim: 128,
    budget: 256,
    page_size: 16,
};
const CELLS: u32 = 3001;
const WINDOWS: u32 = 3;
const ROWS: u32 = 2;
/// Position of the first row; the last one stands at the last cell.
const FIRST: u32 = CELLS - WINDOWS * ROWS;

/// The engine's kernels. They only move words, so that any driver runs them exactly.
const KERNELS: &str = "
override ROWS: u32;
override FIRST: u32;
override MAX_WIDTH: u32;
override QUERY: u32;      // words of a row
override INDEX_QUERY: u32;
override IDS: u32;

struct Step { pos: u32, n_kv: u32, n_bid: u32, width: u32 }

// The counter: position of the next row. Only `store` moves it on.
@group(0) @binding(0) var<storage, read_write> counter: u32;
@group(0) @binding(1) var<storage, read_write> steps: array<Step, 16>;
@group(0) @binding(2) var<storage, read> queries: array<u32>;
@group(0) @binding(3) var<storage, read> index_queries: array<u32>;
@group(0) @binding(4) var<storage, read_write> query: array<u32>;
@group(0) @binding(5) var<storage, read_write> index_query: array<u32>;

// Step records of the next rows, and their queries.
@compute @workgroup_size(64)
fn prepare(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let row = counter - FIRST;
    if i < 16u {
        var step = Step();
        if i < ROWS {
            let pos = counter + i;
            step = Step(pos, pos + 1u, (pos + 1u) / 4u, min(pos + 1u, MAX_WIDTH));
        }
        steps[i] = step;
    }
    if i < ROWS * QUERY { query[i] = queries[row * QUERY + i]; }
    if i < ROWS * INDEX_QUERY { index_query[i] = index_queries[row * INDEX_QUERY + i]; }
}

@group(1) @binding(0) var<storage, read> ids: array<u32>;
@group(1) @binding(1) var<storage, read> attention: array<u32>;
@group(1) @binding(2) var<storage, read_write> all_ids: array<u32>;
@group(1) @binding(3) var<storage, read_write> all_attention: array<u32>;

// Where a next layer would read the attention: keeps it and the ids, and accepts the rows.
@compute @workgroup_size(64)
fn store(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let row = steps[0].pos - FIRST;
    if i < ROWS * IDS { all_ids[row * IDS + i] = ids[i]; }
    if i < ROWS * QUERY { all_attention[row * QUERY + i] = attention[i]; }
    if i == 0u { counter += ROWS; }
}
";

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    env_logger::init();
    match pollster::block_on(run(std::env::args().nth(1))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: the bytes are not the CPU's");
            ExitCode::from(1)
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(2)
        }
    }
}

/// Whether the bytes are the CPU's.
async fn run(wanted: Option<String>) -> Result<bool, Failure> {
    // What an engine has anyway: a device, its cache, its queries.
    let (device, queue) = open(wanted).await?;
    let text = Text::load();
    let cache = TextCache::build(&text, SHAPE, KvFormat::Int8, CELLS, || ());
    let window = TextWindow::new(&text, &SHAPE, (FIRST..CELLS).collect());
    let cache = cache.view();
    let KvCells::Int8 { k, k_scale, v, v_scale } = cache.kv else { unreachable!("built as int8") };
    let engine = Buffers { device: &device };
    let kv = [
        engine.storage("keys", bytemuck::cast_slice(k)),
        engine.storage("key scales", bytemuck::cast_slice(k_scale)),
        engine.storage("values", bytemuck::cast_slice(v)),
        engine.storage("value scales", bytemuck::cast_slice(v_scale)),
    ];
    let page_table = engine.storage("page table", bytemuck::cast_slice(cache.page_table));
    let counter = engine.storage("counter", bytemuck::bytes_of(&FIRST));
    let steps = engine.empty("steps", STEPS_BYTES, BufferUsages::STORAGE | BufferUsages::UNIFORM);
    let queries = engine.storage("queries", bytemuck::cast_slice(&window.query));
    let index_queries = engine.storage("index queries", bytemuck::cast_slice(&window.index_query));
    let words =
        [SHAPE.q_heads * SHAPE.head_dim, SHAPE.index_heads * SHAPE.index_dim, QsaTopk::id_stride(&SHAPE)];
    let [query_bytes, index_bytes, id_bytes] = words.map(|w| 4 * u64::from(w));
    let (window_rows, all_rows) = (u64::from(ROWS), u64::from(WINDOWS * ROWS));
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
    let query = engine.empty("query", window_rows * query_bytes, usage);
    let index_query = engine.empty("index query", window_rows * index_bytes, usage);
    let attention = engine.empty("attention", window_rows * query_bytes, usage);
    let all_ids = engine.empty("all ids", all_rows * id_bytes, usage);
    let all_attention = engine.empty("all attention", all_rows * query_bytes, usage);

    // The crate: prove the device, compile the stages, bind them to the engine's buffers.
    let context = Context::from_device(device.clone(), queue.clone(), &Options::default()).await?;
    println!("adapter  {} ({:?})", context.info().name, context.info().backend);
    println!("lowering {}, verdict {}", context.lowering(), context.verdict());
    let keys = QsaKeys::import(&context, &SHAPE, cache.pooled, cache.dead)?;
    let scratch = QsaScratch::new(&context, &SHAPE, ROWS, keys.blocks())?;
    let piece = |i: usize| vec![KvPiece { buffer: whole(&kv[i]), slots: cache.slots(&SHAPE) as u32 }];
    let decode = QsaDecode::new(&context, &SHAPE, KvFormat::Int8)?.bind(
        &DecodeBuffers {
            steps: whole(&steps),
            keys: &keys,
            kv: KvPieces {
                format: KvFormat::Int8,
                k: piece(0),
                k_scale: piece(1),
                v: piece(2),
                v_scale: piece(3),
            },
            page_table: whole(&page_table),
            index_query: whole(&index_query),
            query: whole(&query),
            gate: None,
            out: whole(&attention),
            format: OutputFormat::F32,
        },
        &scratch,
    )?;

    // The engine's own kernels around it.
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some("engine"),
        source: wgpu::ShaderSource::Wgsl(KERNELS.into()),
    });
    let state = [&counter, &steps, &queries, &index_queries, &query, &index_query];
    let results = [&scratch.ids, &attention, &all_ids, &all_attention];
    let layouts = [
        engine.layout(&[false, false, true, true, false, false]),
        engine.layout(&[true, true, false, false]),
    ];
    let groups = [engine.group(&layouts[0], &state), engine.group(&layouts[1], &results)];
    let prepare = engine.kernel(&module, "prepare", &layouts, words);
    let store = engine.kernel(&module, "store", &layouts, words);

    // One encoder, one submission, nothing read in between.
    let mut encoder = device.create_command_encoder(&Default::default());
    for _ in 0..WINDOWS {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let run = |pass: &mut wgpu::ComputePass<'_>, kernel: &wgpu::ComputePipeline| {
            pass.set_pipeline(kernel);
            pass.set_bind_group(0, &groups[0], &[]);
            pass.set_bind_group(1, &groups[1], &[]);
            pass.dispatch_workgroups((ROWS * words.into_iter().max().unwrap_or(1)).div_ceil(64), 1, 1);
        };
        run(&mut pass, &prepare);
        decode.encode(&mut pass, ROWS, CELLS)?;
        run(&mut pass, &store);
    }
    let [ids_size, attention_size] = [all_ids.size(), all_attention.size()];
    let staging = engine.empty(
        "staging",
        ids_size + attention_size + 4,
        BufferUsages::MAP_READ | BufferUsages::COPY_DST,
    );
    encoder.copy_buffer_to_buffer(&all_ids, 0, &staging, 0, ids_size);
    encoder.copy_buffer_to_buffer(&all_attention, 0, &staging, ids_size, attention_size);
    encoder.copy_buffer_to_buffer(&counter, 0, &staging, ids_size + attention_size, 4);
    queue.submit([encoder.finish()]);
    println!(
        "encoder  {WINDOWS} windows of {ROWS} rows in one submission, 3 passes, each with 2 kernels of the engine"
    );

    staging.map_async(wgpu::MapMode::Read, .., |_| ());
    device.poll(wgpu::PollType::wait_indefinitely())?;
    let read = staging.get_mapped_range(..)?.to_vec();
    let read: Vec<u32> = bytemuck::pod_collect_to_vec(&read);
    let (all_ids, rest) = read.split_at(ids_size as usize / 4);
    let (all_attention, counter) = rest.split_at(attention_size as usize / 4);
    println!("counter  went from {FIRST} to {} on the device; the cache has {CELLS} cells", counter[0]);

    // The same on the CPU.
    let mut layer = QsaLayer::import(&Backend::Cpu, SHAPE, &cache)?;
    let expected = layer.decode(&Window { ..window.view() })?;
    let ids: Vec<Vec<u32>> = all_ids
        .chunks_exact(words[2] as usize)
        .zip(&expected.ids)
        .map(|(row, expected)| row[..expected.len()].to_vec())
        .collect();
    let bits: Vec<u32> = expected.attention.iter().map(|y| y.to_bits()).collect();
    let attention: Vec<f32> = all_attention.iter().map(|&b| f32::from_bits(b)).collect();
    let same = ids == expected.ids && all_attention == bits && counter[0] == CELLS;
    let selected: usize = ids.iter().map(Vec::len).sum();
    println!(
        "result   {selected} ids and {} values: {}",
        attention.len(),
        if same { "the CPU's bytes" } else { "NOT the CPU's bytes" }
    );
    println!("digest {}", digest::digest(&ids, &attention));
    Ok(same)
}

/// The engine's device: the wanted adapter, else the first that is no software rasteriser, else the first.
async fn open(wanted: Option<String>) -> Result<(wgpu::Device, wgpu::Queue), Failure> {
    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let all = instance.enumerate_adapters(backends).await;
    let adapter = match &wanted {
        Some(wanted) => all.iter().enumerate().find(|(i, adapter)| {
            *wanted == i.to_string()
                || adapter.get_info().name.to_lowercase().contains(&wanted.to_lowercase())
        }),
        None => {
            let hardware =
                |(_, a): &(usize, &wgpu::Adapter)| a.get_info().device_type != wgpu::DeviceType::Cpu;
            all.iter().enumerate().find(hardware).or(all.iter().enumerate().next())
        }
    };
    let Some((_, adapter)) = adapter else {
        let names: Vec<_> = all.iter().map(|a| a.get_info().name).collect();
        return Err(format!("no such adapter; there are {names:?}").into());
    };
    // None of the features is needed. With PASSTHROUGH_SHADERS kernels run under the faster, precise lowering.
    let required_features = Options::FEATURES & adapter.features();
    let experimental_features = if required_features.intersects(wgpu::Features::all_experimental_mask()) {
        // SAFETY: the engine itself passes no shader through; the crate argues for those that it does.
        unsafe { wgpu::ExperimentalFeatures::enabled() }
    } else {
        wgpu::ExperimentalFeatures::disabled()
    };
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("engine"),
        required_features,
        required_limits: adapter.limits(),
        experimental_features,
        ..Default::default()
    };
    Ok(adapter.request_device(&descriptor).await?)
}

fn whole(buffer: &wgpu::Buffer) -> wgpu::BufferBinding<'_> {
    wgpu::BufferBinding { buffer, offset: 0, size: None }
}

/// How the engine makes its objects.
struct Buffers<'a> {
    device: &'a wgpu::Device,
}

impl Buffers<'_> {
    fn storage(&self, label: &str, contents: &[u8]) -> wgpu::Buffer {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
        self.device.create_buffer_init(&BufferInitDescriptor { label: Some(label), contents, usage })
    }

    fn empty(&self, label: &str, size: u64, usage: BufferUsages) -> wgpu::Buffer {
        let label = Some(label);
        self.device.create_buffer(&wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false })
    }

    /// A layout of storage buffers, each read-only or not.
    fn layout(&self, read_only: &[bool]) -> wgpu::BindGroupLayout {
        let entry = |(binding, &read_only): (usize, &bool)| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<_> = read_only.iter().enumerate().map(entry).collect();
        self.device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
    }

    fn group(&self, layout: &wgpu::BindGroupLayout, buffers: &[&wgpu::Buffer]) -> wgpu::BindGroup {
        let numbered = buffers.iter().enumerate();
        let entries: Vec<_> = numbered
            .map(|(binding, buffer)| wgpu::BindGroupEntry {
                binding: binding as u32,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
    }

    fn kernel(
        &self,
        module: &wgpu::ShaderModule,
        entry: &str,
        layouts: &[wgpu::BindGroupLayout; 2],
        words: [u32; 3],
    ) -> wgpu::ComputePipeline {
        let layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(entry),
            bind_group_layouts: &[Some(&layouts[0]), Some(&layouts[1])],
            immediate_size: 0,
        });
        let constants = [
            ("ROWS", ROWS),
            ("FIRST", FIRST),
            ("MAX_WIDTH", SHAPE.max_width()),
            ("QUERY", words[0]),
            ("INDEX_QUERY", words[1]),
            ("IDS", words[2]),
        ];
        self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(entry),
            layout: Some(&layout),
            module,
            entry_point: Some(entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &constants.map(|(name, value)| (name, f64::from(value))),
                ..Default::default()
            },
            cache: None,
        })
    }
}
