//! Devices, lowerings, pipelines, memory and timing on whatever adapters there are.
//!
//! Without an adapter the tests say that they were skipped; with `SAMEBITS_REQUIRE_GPU=1` that is a failure.

#![cfg(feature = "wgpu")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use pollster::block_on;
use rayon::prelude::*;
use samebits::exact::{Op, subnormal_involved};
use samebits::gpu::{
    AdapterChoice, AdapterReport, Arithmetic, Binding, Context, FusedMultiplyAdd, Kernel, Limits, Lowering,
    LoweringChoice, Options, TimeSource, Timer, Verdict, adapters,
};
use samebits::{Error, wgpu};

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
    for context in any(&Options::default()) {
        println!("{}: {}, {}", context.info().name, context.lowering(), context.verdict());
        for lowering in Lowering::ALL {
            let options = Options {
                lowering: LoweringChoice::Exactly(lowering),
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
    for context in any(&Options::default()) {
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
    for context in any(&Options::default()) {
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

fn any(options: &Options) -> Vec<Context> {
    contexts(&Options { allow_refused: true, ..options.clone() })
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 4096) as f32).collect()
}

fn doubled(n: usize) -> Vec<f32> {
    ramp(n).into_iter().map(|x| 2.0 * x).collect()
}

#[test]
fn webgpu_default_limits_and_no_features_suffice() {
    let options =
        Options { limits: Limits::WebGpuDefault, features: wgpu::Features::empty(), ..Options::default() };
    for context in any(&options) {
        assert_eq!(context.limits().max_storage_buffers_per_shader_stage, 8);
        assert_eq!(context.limits().max_compute_workgroup_storage_size, 16384);
        assert_eq!(context.max_binding(), 128 << 20);
        assert_eq!(context.lowering().arithmetic, Arithmetic::Guarded);
        assert!(!context.has_timestamps());
        assert_eq!(Timer::new(&context, 2).unwrap().source(), TimeSource::Host);
        assert!(run(&context, &[], &ramp(1000)).unwrap() == doubled(1000));
    }
}

/// A device made as an engine would make its own.
fn own_device(index: usize, features: wgpu::Features) -> (wgpu::Device, wgpu::Queue) {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = block_on(instance.enumerate_adapters(wgpu::Backends::all())).remove(index);
    let descriptor = wgpu::DeviceDescriptor {
        required_features: features & adapter.features(),
        // SAFETY: only passthrough shaders are asked for, and only the crate under test makes any.
        experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
        ..Default::default()
    };
    block_on(adapter.request_device(&descriptor)).unwrap()
}

#[test]
fn a_device_of_the_callers_own_that_takes_spirv() {
    for adapter in found() {
        let (device, queue) = own_device(adapter.index, wgpu::Features::PASSTHROUGH_SHADERS);
        let options = Options { allow_refused: true, ..Options::default() };
        let context = block_on(Context::from_device(device, queue, &options)).unwrap();
        assert_eq!(Some(context.lowering()), adapter.lowering);
        assert_eq!(*context.verdict(), adapter.verdict);
        assert_eq!(run(&context, &[], &ramp(100)).unwrap(), doubled(100));
    }
}

#[test]
fn a_device_of_the_callers_own() {
    for adapter in found() {
        let (device, queue) = own_device(adapter.index, wgpu::Features::empty());
        let options = Options { allow_refused: true, ..Options::default() };
        let context = block_on(Context::from_device(device.clone(), queue.clone(), &options)).unwrap();
        assert_eq!(context.info().name, adapter.name);
        assert_eq!(context.lowering().arithmetic, Arithmetic::Guarded);
        assert!(run(&context, &[], &ramp(100)).unwrap() == doubled(100));

        let precise = Options { lowering: LoweringChoice::Precise, ..options.clone() };
        let refused = block_on(Context::from_device(device.clone(), queue, &precise));
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");

        // Nobody tells the context of a caller's device that it is gone; it finds out.
        let buffer = context.zeros("x", 64).unwrap();
        device.destroy();
        let lost = context.read::<u32>(&buffer, 0, 16);
        assert!(matches!(lost, Err(Error::DeviceLost { .. })), "{lost:?}");
        assert!(matches!(context.check_alive(), Err(Error::DeviceLost { .. })));
    }
}

#[test]
fn a_lost_device_is_an_error_and_no_hang() {
    for context in any(&Options::default()) {
        let x = ramp(1 << 16);
        let buffer = context.storage("x", &x).unwrap();
        let pipeline = context.pipeline(&KERNEL).unwrap();
        let mut timer = Timer::new(&context, 2).unwrap();
        let mut recorded = context.device().create_command_encoder(&Default::default());
        timer.start(&mut recorded, "lost").unwrap();
        recorded.clear_buffer(&buffer, 0, None);
        // In the middle of work: submitted, not waited for, and more recorded.
        let mut encoder = context.device().create_command_encoder(&Default::default());
        encoder.clear_buffer(&buffer, 0, None);
        context.submit(encoder).unwrap();
        context.device().destroy();
        let lost = |what: &str, e: Option<Error>| {
            assert!(matches!(e, Some(Error::DeviceLost { .. })), "{what}: {e:?}");
        };
        lost("read", context.read::<f32>(&buffer, 0, 16).err());
        lost("read_async", block_on(context.read_async::<f32>(&buffer, 0, 16)).err());
        lost("write", context.write(&buffer, 0, &[1u32]).err());
        lost("storage", context.storage("y", &x).err());
        lost("bind", pipeline.bind(&context, &[(); 3].map(|()| buffer.as_entire_binding())).err());
        lost("pipeline", context.pipeline(&Kernel { entry: "other", ..KERNEL }).err());
        lost("run", run(&context, &[], &x).err());
        let stopped = timer.stop(&mut recorded);
        lost("timer", stopped.and_then(|()| timer.submit(recorded)).err());
        lost("check_alive", context.check_alive().err());
        // What the caller holds makes a new device whole again.
        let choice = AdapterChoice::Name(context.info().name.clone());
        let options = Options { allow_refused: true, ..Options::default() };
        let again = block_on(Context::open(&choice, &options)).unwrap();
        assert_eq!(run(&again, &[], &x).unwrap()[..4096], doubled(4096));
    }
}

#[test]
fn memory_of_every_length_goes_there_and_back() {
    for context in any(&Options::default()) {
        for n in [0usize, 1, 2, 3, 4, 5, 17, 1000] {
            let bytes: Vec<u8> = (0..n).map(|i| i as u8 ^ 0x5a).collect();
            let buffer = context.storage("bytes", &bytes).unwrap();
            assert!(buffer.size() >= 16 && buffer.size().is_multiple_of(4));
            assert_eq!(context.read::<u8>(&buffer, 0, n).unwrap(), bytes);
            assert_eq!(block_on(context.read_async::<u8>(&buffer, 0, n)).unwrap(), bytes);
            let padding = context.read::<u8>(&buffer, 0, buffer.size() as usize).unwrap();
            assert!(padding[n..].iter().all(|&b| b == 0));
        }
        // More than passes through staging memory at once.
        let words: Vec<u32> = (0..(65 << 20) / 4 + 3).map(|i: u32| i.wrapping_mul(0x9e37_79b1)).collect();
        let buffer = context.storage("words", &words).unwrap();
        assert!(context.read::<u32>(&buffer, 0, words.len()).unwrap() == words);
        assert!(context.read::<u32>(&buffer, 4 * 16_000_000, 100).unwrap() == words[16_000_000..][..100]);
        assert!(block_on(context.read_async::<u32>(&buffer, 0, words.len())).unwrap() == words);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let options = Options { max_binding: Some(4096), ..Options::default() };
    for context in any(&options) {
        assert_eq!(context.max_binding(), 4096);
        let limit = |e: Error, name: &str| {
            assert!(
                matches!(&e, Error::Limit { what, asked, allowed } if what == name && asked > allowed),
                "{e}"
            );
        };
        let invalid = |e: Error| assert!(matches!(e, Error::Invalid { .. }), "{e}");
        let max = context.limits().max_buffer_size;
        limit(context.zeros("huge", max + 1).unwrap_err(), "max_buffer_size");
        limit(context.zeros("huge", u64::MAX).unwrap_err(), "max_buffer_size");
        // Within the limit, but perhaps not within the memory.
        if let Err(e) = context.zeros("huge", max / 4 * 4) {
            assert!(matches!(e, Error::OutOfMemory { asked, .. } if asked == max / 4 * 4), "{e}");
        }

        let pipeline = context.pipeline(&KERNEL).unwrap();
        let params = context.uniform("params", &[0u32; 4]).unwrap();
        let short = context.uniform("short", &[0u32; 4]).unwrap();
        let small = context.zeros("small", 4096).unwrap();
        let large = context.zeros("large", 4100).unwrap();
        let bind = |p: wgpu::BindingResource<'_>, x: &wgpu::Buffer, y: &wgpu::Buffer| {
            pipeline.bind(&context, &[p, x.as_entire_binding(), y.as_entire_binding()])
        };
        bind(params.as_entire_binding(), &small, &small).unwrap();
        limit(
            bind(params.as_entire_binding(), &large, &small).unwrap_err(),
            "max_storage_buffer_binding_size",
        );
        invalid(pipeline.bind(&context, &[params.as_entire_binding()]).unwrap_err());
        let part = |offset, size| {
            wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: &short,
                offset,
                size: std::num::NonZeroU64::new(size),
            })
        };
        invalid(bind(part(0, 12), &small, &small).unwrap_err());
        invalid(bind(part(4, 0), &small, &small).unwrap_err());
        invalid(bind(part(0, 1 << 40), &small, &small).unwrap_err());
        invalid(bind(part(u64::MAX, 16), &small, &small).unwrap_err());
        // A storage buffer is no uniform: wgpu's own check, caught.
        let error = bind(small.as_entire_binding(), &small, &small).unwrap_err();
        assert!(matches!(error, Error::Gpu { .. }), "{error}");

        invalid(context.read::<u32>(&small, 0, 1025).unwrap_err());
        invalid(context.read::<u32>(&small, 2, 1).unwrap_err());
        invalid(context.read::<u32>(&small, u64::MAX - 3, 1).unwrap_err());
        invalid(context.read::<u64>(&small, 0, usize::MAX).unwrap_err());
        invalid(context.read::<u32>(&params, 0, 1).unwrap_err());
        invalid(context.write(&small, 4096, &[1u8]).unwrap_err());
        invalid(context.write(&small, 1, &[1u8]).unwrap_err());

        let most = context.limits().max_compute_workgroups_per_dimension;
        context.check_dispatch([most, 1, most]).unwrap();
        limit(context.check_dispatch([1, most + 1, 1]).unwrap_err(), "max_compute_workgroups_per_dimension");
        let group = bind(params.as_entire_binding(), &small, &context.zeros("y", 4096).unwrap()).unwrap();
        let mut encoder = context.device().create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline.raw);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(most + 1, 1, 1);
        drop(pass);
        let error = context.submit(encoder).unwrap_err();
        assert!(matches!(error, Error::Gpu { .. }), "{error}");
        // And the device still works.
        assert_eq!(run(&context, &[], &ramp(1024)).unwrap(), doubled(1024));
    }
}

#[test]
fn kernels_that_cannot_be_are_errors() {
    for context in any(&Options::default()) {
        for lowering in Lowering::ALL {
            if lowering.arithmetic == Arithmetic::Precise && context.spirv_target().is_none() {
                continue;
            }
            let failure = |kernel: Kernel<'_>| context.pipeline_with(&kernel, lowering).unwrap_err();
            let gpu = |kernel: Kernel<'_>, needle: &str| {
                let error = failure(kernel);
                assert!(matches!(&error, Error::Gpu { what, .. } if what.contains(kernel.name)), "{error}");
                assert!(error.to_string().contains(needle), "{error}");
            };
            gpu(Kernel { sources: &["fn f( {"], ..KERNEL }, "expected");
            gpu(Kernel { sources: &[DOUBLE, "fn f() -> f32 { return 1u; }"], ..KERNEL }, "f32");
            gpu(Kernel { entry: "nothing", ..KERNEL }, "nothing");
            gpu(Kernel { constants: &[("NOT", 1.0)], ..KERNEL }, "NOT");
            gpu(Kernel { constants: &[("SHIFT", f64::NAN)], ..KERNEL }, "finite");
            gpu(Kernel { bindings: &BINDINGS[..2], ..KERNEL }, "binding 2");
            gpu(
                Kernel { bindings: &[Binding::Uniform, Binding::ReadWrite, Binding::ReadWrite], ..KERNEL },
                "binding 1",
            );
            let wide = DOUBLE.replace("workgroup_size(64)", "workgroup_size(64, 64, 64)");
            let error = failure(Kernel { sources: &[&wide], ..KERNEL });
            assert!(matches!(error, Error::Limit { .. }), "{error}");
            let shared = "var<workgroup> big: array<f32, 1000000>;
                fn touch() { big[0] = 1.0; }";
            let uses = DOUBLE.replace("if id.x", "touch(); if id.x");
            let error = failure(Kernel { sources: &[shared, &uses], ..KERNEL });
            assert!(
                matches!(&error, Error::Limit { what, .. } if what == "max_compute_workgroup_storage_size"),
                "{error}"
            );
            let many = vec![Binding::Read; 1 << 22];
            let error = failure(Kernel { bindings: &many, ..KERNEL });
            assert!(
                matches!(&error, Error::Limit { what, .. } if what == "max_storage_buffers_per_shader_stage"),
                "{error}"
            );
        }
        assert_eq!(run(&context, &[], &ramp(64)).unwrap(), doubled(64));
    }
}

#[test]
fn adapters_that_are_not_there() {
    let open = |choice, options: &Options| block_on(Context::open(&choice, options)).map(|_| ());
    for choice in [AdapterChoice::Index(999), AdapterChoice::Name("no such adapter".into())] {
        let error = open(choice, &Options::default()).unwrap_err();
        assert!(matches!(error, Error::NoAdapter { .. }), "{error}");
    }
    let found = found();
    if found.iter().all(|a| a.software) {
        let error = open(AdapterChoice::Best, &Options::default()).unwrap_err();
        assert!(matches!(error, Error::NoAdapter { .. }), "{error}");
        assert!(error.to_string().contains("CPU backend"), "{error}");
    }
    for adapter in &found {
        let more = wgpu::Limits { max_bind_groups: 1 << 30, ..wgpu::Limits::default() };
        let options = Options { limits: Limits::Custom(Box::new(more)), ..Options::default() };
        let error = open(AdapterChoice::Index(adapter.index), &options).unwrap_err();
        assert!(matches!(&error, Error::Limit { what, .. } if what == "max_bind_groups"), "{error}");
    }
}

#[test]
fn verdicts_of_the_software_adapters() {
    for adapter in found() {
        let verdict = |lowering| {
            let options = Options { lowering, allow_refused: true, ..Options::default() };
            let started = Instant::now();
            let context = block_on(Context::open(&AdapterChoice::Index(adapter.index), &options)).unwrap();
            println!(
                "{}, {lowering}: {}: {} ({:.2?})",
                adapter.name,
                context.lowering(),
                context.verdict(),
                started.elapsed()
            );
            context.verdict().clone()
        };
        let all = Lowering::ALL.map(|l| (l, verdict(LoweringChoice::Exactly(l))));
        for choice in [LoweringChoice::Auto, LoweringChoice::Precise, LoweringChoice::Guarded] {
            verdict(choice);
        }
        let soft = match &adapter.name {
            name if name.contains("llvmpipe") => Verdict::Exact,
            name if name.contains("SwiftShader") => Verdict::ExactNormal,
            _ => continue,
        };
        assert!(adapter.software);
        assert_eq!(adapter.verdict, soft);
        assert_eq!(adapter.lowering.unwrap().to_string(), "precise+soft-fma");
        for (lowering, verdict) in all {
            match lowering.fma {
                FusedMultiplyAdd::Soft => assert_eq!(verdict, soft, "{lowering}"),
                FusedMultiplyAdd::Native => {
                    let Verdict::Refused { case, detail } = verdict else { panic!("{lowering}: {verdict}") };
                    assert!(case.contains("fma") && detail.contains("expected"), "{case}: {detail}");
                }
            }
        }
        // Refused unless the caller insists; the error names the adapter, the lowering, the case and the way out.
        let options = Options { lowering: LoweringChoice::Exactly(Lowering::ALL[0]), ..Options::default() };
        let error = block_on(Context::open(&AdapterChoice::Index(adapter.index), &options)).unwrap_err();
        assert!(
            matches!(&error, Error::Refused { adapter: a, lowering, case, .. }
                if *a == adapter.name && lowering == "precise" && case.contains("fma")),
            "{error}"
        );
        assert!(error.to_string().contains("CPU backend"), "{error}");
    }
}

/// The results of one operation of the probe's shader, compiled for it alone: some adapters run all branches.
fn results(context: &Context, op: Op, operands: [&[u32]; 3]) -> Vec<u32> {
    let probe =
        include_str!("../wgsl/exact/probe.wgsl").replace("switch params.op", &format!("switch {}u", op.id()));
    let kernel = Kernel {
        name: "walk",
        sources: &[
            include_str!("../wgsl/exact/f16.wgsl"),
            include_str!("../wgsl/exact/math.wgsl"),
            include_str!("../wgsl/exact/lane.wgsl"),
            &probe,
        ],
        entry: "main",
        bindings: &[Binding::Uniform, Binding::Read, Binding::Read, Binding::Read, Binding::ReadWrite],
        constants: &[],
    };
    let pipeline = context.pipeline(&kernel).unwrap();
    let count = operands[0].len();
    let params = context.uniform("params", &[0, op.id(), count as u32, 0]).unwrap();
    let inputs = operands.map(|words| context.storage("operand", words).unwrap());
    let output = context.zeros("results", 4 * count as u64).unwrap();
    let mut resources = vec![params.as_entire_binding()];
    resources.extend(inputs.iter().chain([&output]).map(|b| b.as_entire_binding()));
    let group = pipeline.bind(context, &resources).unwrap();
    let groups = (count as u32).div_ceil(pipeline.workgroup_size[0]);
    let width = groups.min(context.limits().max_compute_workgroups_per_dimension);
    let mut encoder = context.device().create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&pipeline.raw);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(width, groups.div_ceil(width), 1);
    drop(pass);
    context.submit(encoder).unwrap();
    context.read(&output, 0, count).unwrap()
}

/// Every function of one argument over 2^24 inputs (all exponents, all leading 15 bits of the significand, the rest
/// scattered) and the special values. `SAMEBITS_WALK_BITS` sets another number than 24, up to 32; without it, a slow
/// adapter stops after some seconds of one function, having seen a coarser grid.
#[test]
fn walk_of_the_functions_of_one_argument() {
    let asked = std::env::var("SAMEBITS_WALK_BITS").ok();
    let bits: u32 = asked.as_ref().map_or(24, |v| v.parse().unwrap());
    assert!((16..=32).contains(&bits));
    let patience = if asked.is_some() { Duration::MAX } else { Duration::from_secs(3) };
    for context in any(&Options::default()) {
        if !context.verdict().passed() {
            println!("{}: {}: not walked", context.info().name, context.verdict());
            continue;
        }
        let started = Instant::now();
        for op in Op::ALL.into_iter().filter(|op| op.arity() == 1) {
            let (mut gpu, mut wrong, mut flushed) = (Duration::ZERO, 0u64, 0u64);
            let mut check = |words: &[u32]| {
                let none = vec![0u32; words.len()];
                let start = Instant::now();
                let got = results(&context, op, [words, &none, &none]);
                gpu += start.elapsed();
                let bad = |&(&a, &got): &(&u32, &u32)| !op.same(got, op.eval(a, 0, 0));
                let bad: Vec<_> = words.par_iter().zip(&got).filter(bad).collect();
                for (&a, &got) in bad {
                    if *context.verdict() == Verdict::ExactNormal && subnormal_involved(op, a, 0, 0) {
                        flushed += 1;
                    } else {
                        wrong += 1;
                        if wrong <= 3 {
                            println!(
                                "{}({a:08x}): got {got:08x}, expected {:08x}",
                                op.name(),
                                op.eval(a, 0, 0)
                            );
                        }
                    }
                }
            };
            check(&op.inputs(1, 4096)[0]);
            let blocks = 1u32 << bits.saturating_sub(22);
            let begun = Instant::now();
            let mut walked = 0u64;
            for block in (0..blocks).take_while(|&b| b == 0 || begun.elapsed() < patience) {
                // Interleaved, so that every block covers all exponents.
                let words: Vec<u32> = (0..1u32 << bits.min(22))
                    .map(|i| {
                        let i = i * blocks + block;
                        let low = if bits == 32 { 0 } else { i.wrapping_mul(0x9e37_79b1) >> bits };
                        (u64::from(i) << (32 - bits)) as u32 | low
                    })
                    .collect();
                check(&words);
                walked += words.len() as u64;
            }
            println!(
                "{}, {}: {}: {walked} inputs, {wrong} wrong, {flushed} subnormal and flushed, adapter {gpu:.2?}",
                context.info().name,
                context.lowering(),
                op.name()
            );
            assert_eq!(wrong, 0, "{}", op.name());
        }
        println!("{}: walked in {:.2?}", context.info().name, started.elapsed());
    }
}
