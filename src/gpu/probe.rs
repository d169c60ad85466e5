//! The conformance probe: does a device give the defined results under a lowering?
//!
//! `wgsl/exact/probe.wgsl` holds every operation that kernels are made of. Each runs over inputs whose results are known,
//! all in one submission, and the outputs are compared bit by bit.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bytemuck::{Pod, Zeroable};

use super::context::{Context, lock};
use super::lowering::{Lowering, Verdict};
use super::pipeline::{Binding, Kernel};
use crate::error::{Error, Result};
use crate::exact::{Op, subnormal_involved};

/// Inputs of each operation. The first few thousand pair special values; the rest are drawn from the ranges in which
/// rounding goes wrong. A multiple of 64, so that the operations' parts of a buffer are aligned on every device.
const COUNT: usize = 8192;
/// Any number; the same everywhere, so that a report from one machine can be repeated on another.
const SEED: u64 = 0x5a3e_b175;
/// Threads of a workgroup of the shader.
const WORKGROUP: u32 = 64;

const BINDINGS: &[Binding] =
    &[Binding::UniformDynamic, Binding::Read, Binding::Read, Binding::Read, Binding::ReadWrite];

const SOURCES: &[&str] = &[
    include_str!("../../wgsl/exact/f16.wgsl"),
    include_str!("../../wgsl/exact/math.wgsl"),
    include_str!("../../wgsl/exact/lane.wgsl"),
    include_str!("../../wgsl/exact/probe.wgsl"),
];

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    zero: u32,
    op: u32,
    count: u32,
    spare: u32,
}

/// Operations with their inputs and results.
struct Cases {
    ops: Vec<Op>,
    /// One after the other, [`COUNT`] of each operation.
    inputs: [Vec<u32>; 3],
    expected: Vec<u32>,
}

impl Cases {
    fn new(ops: Vec<Op>) -> Cases {
        let mut inputs: [Vec<u32>; 3] = Default::default();
        let mut expected = Vec::with_capacity(ops.len() * COUNT);
        for op in &ops {
            let [a, b, c] = op.inputs(SEED, COUNT);
            expected.extend((0..COUNT).map(|i| op.eval(a[i], b[i], c[i])));
            for (all, one) in inputs.iter_mut().zip([a, b, c]) {
                all.extend(one);
            }
        }
        Cases { ops, inputs, expected }
    }

    /// Runs everything; the verdict, and how many results are wrong.
    fn run(&self, context: &Context, lowering: Lowering) -> Result<(Verdict, usize)> {
        let got = self.outputs(context, lowering)?;
        let mut verdict = Verdict::Exact;
        let mut wrong = 0;
        for (n, (&got, &expected)) in got.iter().zip(&self.expected).enumerate() {
            let op = self.ops[n / COUNT];
            if op.same(got, expected) {
                continue;
            }
            let [a, b, c] = [0, 1, 2].map(|i: usize| self.inputs[i][n]);
            if subnormal_involved(op, a, b, c) {
                if verdict == Verdict::Exact {
                    verdict = Verdict::ExactNormal;
                }
                continue;
            }
            wrong += 1;
            if verdict.passed() {
                let operands: Vec<_> = [a, b, c][..op.arity()].iter().map(|w| format!("{w:08x}")).collect();
                verdict = Verdict::Refused {
                    case: op.name().to_owned(),
                    detail: format!(
                        "operands {}: expected {expected:08x}, got {got:08x}",
                        operands.join(", ")
                    ),
                };
            }
        }
        Ok((verdict, wrong))
    }

    fn outputs(&self, context: &Context, lowering: Lowering) -> Result<Vec<u32>> {
        let kernel =
            Kernel { name: "probe", sources: SOURCES, entry: "main", bindings: BINDINGS, constants: &[] };
        let pipeline = context.pipeline_with(&kernel, lowering)?;
        let stride = size_of::<Params>()
            .next_multiple_of(context.limits().min_uniform_buffer_offset_alignment.max(1) as usize);
        let mut params = vec![0u8; stride * self.ops.len()];
        for (&op, bytes) in self.ops.iter().zip(params.chunks_exact_mut(stride)) {
            let params = Params { zero: 0, op: op.id(), count: COUNT as u32, spare: 0 };
            bytes[..size_of::<Params>()].copy_from_slice(bytemuck::bytes_of(&params));
        }
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let uniform = context.buffer("probe parameters", params.len() as u64, usage)?;
        context.write(&uniform, 0, &params)?;
        let output = context.zeros("probe results", 4 * self.expected.len() as u64)?;
        let mut buffers = Vec::with_capacity(4);
        for input in &self.inputs {
            buffers.push(context.storage("probe operands", input)?);
        }
        buffers.push(output.clone());

        let bytes = 4 * COUNT as u64;
        let part = |buffer, offset, size| {
            wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset,
                size: std::num::NonZeroU64::new(size),
            })
        };
        let mut encoder = context.device().create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline.raw);
        for i in 0..self.ops.len() {
            let mut resources = vec![part(&uniform, 0, size_of::<Params>() as u64)];
            resources.extend(buffers.iter().map(|b| part(b, bytes * i as u64, bytes)));
            let group = pipeline.bind(context, &resources)?;
            pass.set_bind_group(0, &group, &[(stride * i) as u32]);
            pass.dispatch_workgroups((COUNT as u32).div_ceil(WORKGROUP), 1, 1);
        }
        drop(pass);
        context.submit(encoder)?;
        context.read(&output, 0, self.expected.len())
    }
}

/// What was found in this process, by all that the result depends on. Devices are opened more than once (a lost one
/// is replaced, a report comes before a run), and a probe can take seconds.
static KNOWN: Mutex<BTreeMap<String, (Verdict, usize)>> = Mutex::new(BTreeMap::new());

/// The first of `candidates` that passes, or the one with the fewest wrong results.
pub(super) fn choose(context: &Context, candidates: &[Lowering]) -> Result<(Lowering, Verdict)> {
    // Held while probing, so that threads that open the same adapter at once do not all probe it.
    let mut known = lock(&KNOWN);
    let mut cases = None;
    let mut closest: Option<(usize, Lowering, Verdict)> = None;
    for &lowering in candidates {
        let key =
            format!("{:?} {:?} {:?} {lowering}", context.info(), context.spirv_target(), context.features());
        let (verdict, wrong) = match known.get(&key) {
            Some(found) => found.clone(),
            None => {
                let cases = cases.get_or_insert_with(|| Cases::new(Op::ALL.to_vec()));
                match cases.run(context, lowering) {
                    Ok(found) => {
                        known.insert(key, found.clone());
                        found
                    }
                    // Says nothing about the arithmetic. A limit is the caller's choice, for this device alone.
                    Err(e @ (Error::DeviceLost { .. } | Error::OutOfMemory { .. } | Error::Limit { .. })) => {
                        return Err(e);
                    }
                    // A driver that cannot compile the probe cannot compile the kernels either, but perhaps can under
                    // another lowering. Not kept: the next device may have other limits, or the driver a better day.
                    Err(e) => {
                        let case = "running the probe".into();
                        (Verdict::Refused { case, detail: e.to_string() }, usize::MAX)
                    }
                }
            }
        };
        log::debug!("{}: {lowering}: {verdict}, {wrong} wrong", context.info().name);
        if verdict.passed() {
            return Ok((lowering, verdict));
        }
        if closest.as_ref().is_none_or(|c| wrong < c.0) {
            closest = Some((wrong, lowering, verdict));
        }
    }
    let (_, lowering, verdict) =
        closest.ok_or_else(|| Error::invalid("lowering", "at least one to try", "none"))?;
    Ok((lowering, verdict))
}
