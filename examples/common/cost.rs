//! What the stages must move at least, and how fast a backend copies.

use std::time::Instant;

use rayon::prelude::*;
use samebits::shape::BLOCK_CELLS;
use samebits::{KvFormat, QsaShape, Trace};

/// Bytes that each of the four stages must read and write when it takes its input from memory, leaves its result
/// there, and touches everything once: what rows share is counted once.
pub fn bytes_moved(shape: &QsaShape, format: KvFormat, trace: &Trace) -> [u64; 4] {
    let steps = &trace.steps;
    let rows = steps.len() as u64;
    let of_rows = |f: &dyn Fn(usize) -> u64| (0..steps.len()).map(f).sum::<u64>();
    let scores = of_rows(&|r| 4 * (u64::from(steps[r].n_bid) + 1));
    let ids = of_rows(&|r| 4 * u64::from(steps[r].width));
    let partials = of_rows(&|r| 4 * u64::from(steps[r].chunks() * shape.partial_chunk()));
    let heads = 4 * rows * u64::from(shape.q_heads * shape.head_dim);
    let index_query = 4 * rows * u64::from(shape.index_heads * shape.index_dim);

    let cells = steps.iter().map(|s| s.n_kv).max().unwrap_or(0);
    let pooled = 4 * u64::from(shape.index_dim) * u64::from(cells / BLOCK_CELLS + 1);
    let mut selected: Vec<u32> = trace.ids.concat();
    selected.sort_unstable();
    selected.dedup();
    let values = u64::from(shape.kv_heads * shape.head_dim);
    let cell = match format {
        KvFormat::F16 => 2 * values,
        KvFormat::Int8 => values + values / 32,
    };
    [
        pooled + index_query + scores,
        scores + ids,
        ids + 2 * cell * selected.len() as u64 + heads + partials,
        partials + heads,
    ]
}

/// Bytes read and written in a second by the fastest of some copies of 128 MiB, over all threads.
pub fn cpu_copy_bandwidth() -> f64 {
    const BYTES: usize = 128 << 20;
    let from = vec![1u8; BYTES];
    let mut to = vec![0u8; BYTES];
    let part = BYTES / rayon::current_num_threads();
    let copy = |to: &mut Vec<u8>| {
        let start = Instant::now();
        to.par_chunks_mut(part).zip(from.par_chunks(part)).for_each(|(to, from)| to.copy_from_slice(from));
        start.elapsed().as_secs_f64()
    };
    let best = (0..6).map(|_| copy(&mut to)).fold(f64::INFINITY, f64::min);
    2.0 * BYTES as f64 / best
}

/// The same on a device, by a kernel, with the clock that times its stages. A driver's own copy from buffer to buffer can
/// be much slower than its memory.
#[cfg(feature = "wgpu")]
pub fn device_copy_bandwidth(context: &samebits::gpu::Context) -> samebits::Result<f64> {
    use samebits::gpu::{Binding, Kernel, Timer};

    const COPY: &str = "
        struct Params { zero: u32, vectors: u32, spare0: u32, spare1: u32 }
        @group(0) @binding(0) var<uniform> params: Params;
        @group(0) @binding(1) var<storage, read> from_: array<vec4<u32>>;
        @group(0) @binding(2) var<storage, read_write> to: array<vec4<u32>>;
        @compute @workgroup_size(256)
        fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
            for (var i = at.x; i < params.vectors; i += n.x * 256u) { to[i] = from_[i]; }
        }";
    let bytes = context.max_binding().min(128 << 20) / 16 * 16;
    let (from, to) = (context.zeros("copy from", bytes)?, context.zeros("copy to", bytes)?);
    let params = context.uniform("copy", &[0u32, (bytes / 16) as u32, 0, 0])?;
    let pipeline = context.pipeline(&Kernel {
        name: "copy",
        sources: &[COPY],
        entry: "main",
        bindings: &[Binding::Uniform, Binding::Read, Binding::ReadWrite],
        constants: &[],
    })?;
    let resources = [params.as_entire_binding(), from.as_entire_binding(), to.as_entire_binding()];
    let group = pipeline.bind(context, &resources)?;
    let repeat = if context.info().device_type == samebits::wgpu::DeviceType::Cpu { 1 } else { 10 };
    let mut timer = Timer::new(context, 1)?;
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        let mut encoder = context.device().create_command_encoder(&Default::default());
        timer.start(&mut encoder, "copy")?;
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&pipeline.raw);
            pass.set_bind_group(0, &group, &[]);
            for _ in 0..repeat {
                pass.dispatch_workgroups(16_384, 1, 1);
            }
        }
        timer.stop(&mut encoder)?;
        for span in timer.submit(encoder)? {
            best = best.min(span.nanoseconds / f64::from(repeat));
        }
    }
    Ok(2.0 * bytes as f64 / best * 1e9)
}
