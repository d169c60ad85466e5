//! Devices, lowerings, pipelines, memory and timing on whatever adapters there are.
//!
//! Without an adapter the tests say that they were skipped; with `SAMEBITS_REQUIRE_GPU=1` that is a failure.

#![cfg(feature = "wgpu")]

use std::sync::Arc;

use pollster::block_on;
use samebits::gpu::{
    AdapterChoice, AdapterReport, Binding, Context, Kernel, Lowering, Options, TimeSource, Timer, adapters,
};

const DOUBLE: &str = "
    struct Params { zero: u32, count: u32, factor: f32, spare: u32 }
    override SHIFT: f32 = 0.0;
    @group(0) @binding(0) var<uniform> params: Params;
    @group(0) @binding(1) var<storage, read> x: array<f32>;
    @group(0) @binding(2) var<storage, read_write> y: array<f32>;
    @compute @workgroup_size(64)
    fn double(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < params.count { y[id.x] = f_add(f_mul(x[id.x], params.factor), SHIFT); }
    }
    @compute @workgroup_size(64)
    fn other(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < params.count { y[id.x] = x[id.x]; }
    }";
const BINDINGS: &[Binding] = &[Binding::Uniform, Binding::Read, Binding::ReadWrite];
const KERNEL: Kernel<'_> =
    Kernel { name: "double", sources: &[DOUBLE], entry: "double", bindings: BINDINGS, constants: &[] };

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    zero: u32,
    count: u32,
    factor: f32,
    spare: u32,
}

/// All adapters; empty after saying so when there are none.
fn found() -> Vec<AdapterReport> {
    let found = block_on(adapters());
    if found.is_empty() {
        let required = std::env::var("SAMEBITS_REQUIRE_GPU").is_ok_and(|v| v == "1");
        assert!(!required, "no adapter, and SAMEBITS_REQUIRE_GPU=1");
        println!("skipped: no adapter");
    }
    found
}

fn contexts(options: &Options) -> Vec<Context> {
    found()
        .iter()
        .map(|a| block_on(Context::open(&AdapterChoice::Index(a.index), options)).expect(&a.name))
        .collect()
}

fn run(context: &Context, constants: &[(&str, f64)], x: &[f32]) -> samebits::Result<Vec<f32>> {
    let pipeline = context.pipeline(&Kernel { constants, ..KERNEL })?;
    let params = Params { zero: 0, count: x.len() as u32, factor: 2.0, spare: 0 };
    let params = context.uniform("params", &params)?;
    let input = context.storage("x", x)?;
    let output = context.zeros("y", 4 * x.len() as u64)?;
    let group = pipeline.bind(
        context,
        &[params.as_entire_binding(), input.as_entire_binding(), output.as_entire_binding()],
    )?;
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&pipeline.raw);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups((x.len() as u32).div_ceil(pipeline.workgroup_size[0]), 1, 1);
    drop(pass);
    context.submit(encoder)?;
    context.read(&output, 0, x.len())
}

#[test]
fn a_kernel_runs_under_every_lowering() {
    let x: Vec<f32> = (0..1000).map(|i| i as f32 * 0.25).collect();
    for context in contexts(&Options { allow_refused: true, ..Options::default() }) {
        println!("{}: {}, {}", context.info().name, context.lowering(), context.verdict());
        for lowering in Lowering::ALL {
            let options = Options {
                lowering: samebits::gpu::LoweringChoice::Exactly(lowering),
                allow_refused: true,
                ..Options::default()
            };
            let choice = AdapterChoice::Name(context.info().name.clone());
            let context = block_on(Context::open(&choice, &options)).unwrap();
            let y = run(&context, &[("SHIFT", 1.0)], &x).unwrap();
            assert!(x.iter().zip(&y).all(|(x, y)| x * 2.0 + 1.0 == *y), "{lowering}");
        }
    }
}

#[test]
fn pipelines_are_shared_by_what_makes_them() {
    for context in contexts(&Options { allow_refused: true, ..Options::default() }) {
        let first = context.pipeline(&KERNEL).unwrap();
        assert!(Arc::ptr_eq(&first, &context.pipeline(&KERNEL).unwrap()));
        let renamed = context.pipeline(&Kernel { name: "renamed", ..KERNEL }).unwrap();
        assert!(Arc::ptr_eq(&first, &renamed));
        let sources = [DOUBLE, " "];
        let bindings = [BINDINGS, &[Binding::Read]].concat();
        for other in [
            Kernel { sources: &sources, ..KERNEL },
            Kernel { entry: "other", ..KERNEL },
            Kernel { bindings: &bindings, ..KERNEL },
            Kernel { constants: &[("SHIFT", 1.0)], ..KERNEL },
        ] {
            assert!(!Arc::ptr_eq(&first, &context.pipeline(&other).unwrap()), "{other:?}");
        }
        for lowering in Lowering::ALL {
            let same = Arc::ptr_eq(&first, &context.pipeline_with(&KERNEL, lowering).unwrap());
            assert_eq!(same, lowering == context.lowering());
        }
    }
}

#[test]
fn timing() {
    for context in contexts(&Options { allow_refused: true, ..Options::default() }) {
        for mut timer in [Timer::new(&context, 4).unwrap(), Timer::host(&context, 4).unwrap()] {
            let mut encoder = context.device().create_command_encoder(&Default::default());
            let buffer = context.zeros("x", 1 << 24).unwrap();
            for name in ["a", "b"] {
                timer.start(&mut encoder, name).unwrap();
                encoder.clear_buffer(&buffer, 0, None);
                timer.stop(&mut encoder).unwrap();
            }
            let spans = timer.submit(encoder).unwrap();
            println!("{:?}: {spans:?}", timer.source());
            assert_eq!(spans.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
            assert!(spans.iter().all(|s| s.nanoseconds >= 0.0));
        }
        assert_eq!(Timer::new(&context, 1).unwrap().source() == TimeSource::Gpu, context.has_timestamps());
    }
}
