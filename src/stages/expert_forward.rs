//! The experts of a window: quantise, group, gate and up, SwiGLU, down, combine, encoded into one compute pass.

use wgpu::{BufferBinding, BufferUsages};

use super::expert_combine::{CombineBuffers, ExpertCombineBound};
use super::expert_down::ExpertDownBound;
use super::expert_gate_up::ExpertGateUpBound;
use super::expert_group::{ExpertGroupBound, NO_SLOT};
use super::expert_quantize::ExpertQuantizeBound;
use super::expert_swiglu::ExpertSwigluBound;
use super::{
    ExpertCombine, ExpertDown, ExpertGateUp, ExpertGroup, ExpertGroups, ExpertMatrices, ExpertQuantize,
    ExpertSwiglu, Q8Buffers, check_binding, check_limit, whole,
};
use crate::error::{Result, check};
use crate::gpu::Context;
use crate::shape::{ExpertShape, MAX_ENTRIES};

/// The stages of a window's experts, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExpertStage {
    /// The tokens' activations as q8_1.
    Quantize,
    /// Entries by expert. Independent of [`ExpertStage::Quantize`].
    Group,
    /// Rows of the gate and up matrices.
    GateUp,
    /// The gated activation, as q8_1.
    Swiglu,
    /// Rows of the down matrices.
    Down,
    /// The weighted sum of a token's experts.
    Combine,
}

impl ExpertStage {
    /// All of them, in order.
    pub const ALL: [ExpertStage; 6] = [
        ExpertStage::Quantize,
        ExpertStage::Group,
        ExpertStage::GateUp,
        ExpertStage::Swiglu,
        ExpertStage::Down,
        ExpertStage::Combine,
    ];

    /// The stage's stem: `expert_quantize` and so on.
    pub fn name(self) -> &'static str {
        match self {
            ExpertStage::Quantize => "expert_quantize",
            ExpertStage::Group => "expert_group",
            ExpertStage::GateUp => "expert_gate_up",
            ExpertStage::Swiglu => "expert_swiglu",
            ExpertStage::Down => "expert_down",
            ExpertStage::Combine => "expert_combine",
        }
    }
}

/// The three matrices of each expert on the device, and which expert's are where.
#[derive(Debug)]
pub struct ExpertWeights {
    ctx: Context,
    shape: ExpertShape,
    /// Gate and up rows one after the other where they are of one format, else the two by themselves.
    gate_up: Vec<ExpertMatrices>,
    down: ExpertMatrices,
    slots: wgpu::Buffer,
}

impl ExpertWeights {
    /// Room for `slots` of a layer's experts; none is there yet.
    ///
    /// # Errors
    /// As [`ExpertShape::check`] and [`ExpertMatrices::new`].
    pub fn new(ctx: &Context, shape: &ExpertShape, slots: u32) -> Result<Self> {
        shape.check()?;
        let new = |format, rows, columns| ExpertMatrices::new(ctx, format, rows, columns, slots);
        let gate_up = if shape.gate == shape.up {
            vec![new(shape.gate, 2 * shape.n_ff, shape.n_embd)?]
        } else {
            vec![new(shape.gate, shape.n_ff, shape.n_embd)?, new(shape.up, shape.n_ff, shape.n_embd)?]
        };
        Ok(ExpertWeights {
            ctx: ctx.clone(),
            shape: *shape,
            gate_up,
            down: new(shape.down, shape.n_embd, shape.n_ff)?,
            slots: ctx.storage("slots", &vec![NO_SLOT; shape.experts as usize])?,
        })
    }

    /// The layer's sizes.
    pub fn shape(&self) -> &ExpertShape {
        &self.shape
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.gate_up.iter().map(ExpertMatrices::bytes).sum::<u64>() + self.down.bytes() + self.slots.size()
    }

    /// Writes an expert's matrices, as ggml's blocks, into a slot. No window that uses the slot may be encoded and not
    /// yet submitted.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when the slot is not there or a matrix has another size; what the
    /// device reports.
    pub fn write(&self, slot: u32, gate: &[u8], up: &[u8], down: &[u8]) -> Result<()> {
        let s = &self.shape;
        for (what, got, bytes) in
            [("gate", gate, s.gate_bytes()), ("up", up, s.up_bytes()), ("down", down, s.down_bytes())]
        {
            check(got.len() as u64 == bytes, what, format!("{bytes} bytes"), format!("{} bytes", got.len()))?;
        }
        match self.gate_up.as_slice() {
            [both] => {
                both.write(slot, 0, gate)?;
                both.write(slot, s.n_ff, up)?;
            }
            two => {
                two[0].write(slot, 0, gate)?;
                two[1].write(slot, 0, up)?;
            }
        }
        self.down.write(slot, 0, down)
    }

    /// Reads a slot's matrices back, as ggml's blocks: gate, up, down.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when the slot is not there; what the device reports.
    pub fn read(&self, slot: u32) -> Result<[Vec<u8>; 3]> {
        let mut gate = self.gate_up[0].read(slot)?;
        let up = match self.gate_up.get(1) {
            Some(up) => up.read(slot)?,
            None => gate.split_off(self.shape.gate_bytes() as usize),
        };
        Ok([gate, up, self.down.read(slot)?])
    }

    /// Says where an expert's matrices are; `None`: not on the device, and a token that goes to it gives NaN.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when there is no such expert or slot; what the device reports.
    pub fn assign(&self, expert: u32, slot: Option<u32>) -> Result<()> {
        let (experts, slots) = (self.shape.experts, self.down.slots());
        check(expert < experts, "expert", format!("below {experts}"), expert)?;
        if let Some(slot) = slot {
            check(slot < slots, "slot", format!("below {slots}"), slot)?;
        }
        self.ctx.write(&self.slots, 4 * u64::from(expert), &[slot.unwrap_or(NO_SLOT)])
    }
}

/// Intermediate results of windows of a fixed number of tokens, reused from window to window.
#[derive(Debug)]
pub struct ExpertScratch {
    tokens: u32,
    used: u32,
    x: Q8,
    routed: BranchScratch,
    shared: Option<BranchScratch>,
}

/// Blocks of activations that own their buffers.
#[derive(Debug)]
struct Q8 {
    codes: wgpu::Buffer,
    scales: wgpu::Buffer,
}

impl Q8 {
    fn new(ctx: &Context, what: &str, blocks: u64) -> Result<Self> {
        check_limit(ctx, what, blocks * 32)?;
        Ok(Q8 { codes: ctx.zeros(what, blocks * 32)?, scales: ctx.zeros(what, blocks * 8)? })
    }

    fn view(&self) -> Q8Buffers<'_> {
        Q8Buffers { codes: whole(&self.codes), scales: whole(&self.scales) }
    }

    fn bytes(&self) -> u64 {
        self.codes.size() + self.scales.size()
    }
}

/// What lies between quantised tokens and the entries' outputs.
#[derive(Debug)]
struct BranchScratch {
    groups: ExpertGroups,
    gate_up: wgpu::Buffer,
    h: Q8,
    outs: wgpu::Buffer,
}

impl BranchScratch {
    fn new(ctx: &Context, shape: &ExpertShape, groups: ExpertGroups) -> Result<Self> {
        let floats = |what: &str, row: u32| {
            let bytes = 4 * u64::from(groups.entries()) * u64::from(row);
            check_limit(ctx, what, bytes)?;
            ctx.zeros(what, bytes)
        };
        Ok(BranchScratch {
            gate_up: floats("gate and up", 2 * shape.n_ff)?,
            h: Q8::new(ctx, "h", u64::from(groups.entries()) * u64::from(shape.n_ff / 32))?,
            outs: floats("experts' outputs", shape.n_embd)?,
            groups,
        })
    }

    fn bytes(&self) -> u64 {
        self.groups.buffer().size() + self.gate_up.size() + self.h.bytes() + self.outs.size()
    }
}

impl ExpertScratch {
    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.x.bytes() + self.routed.bytes() + self.shared.as_ref().map_or(0, BranchScratch::bytes)
    }

    /// The tokens' activations as q8_1: `[tokens]` rows of blocks.
    pub fn x(&self) -> Q8Buffers<'_> {
        self.x.view()
    }

    /// Gate and up rows of each entry, f32 `[tokens * used][2][n_ff]`.
    pub fn gate_up(&self) -> &wgpu::Buffer {
        &self.routed.gate_up
    }

    /// The gated activations as q8_1: `[tokens * used]` rows of blocks.
    pub fn h(&self) -> Q8Buffers<'_> {
        self.routed.h.view()
    }

    /// The entries' outputs, f32 `[tokens * used][n_embd]`.
    pub fn outs(&self) -> &wgpu::Buffer {
        &self.routed.outs
    }
}

/// What a window reads and writes.
#[derive(Debug)]
pub struct ExpertBuffers<'a> {
    /// f32 `[tokens][n_embd]`.
    pub x: BufferBinding<'a>,
    /// u32 `[tokens][used]`, the expert of each entry.
    pub experts: BufferBinding<'a>,
    /// f32 `[tokens][used]`.
    pub weights: BufferBinding<'a>,
    /// f32 `[tokens][n_embd]`.
    pub y: BufferBinding<'a>,
}

/// All stages, compiled for one layer's sizes.
#[derive(Debug, Clone)]
pub struct ExpertForward {
    ctx: Context,
    shape: ExpertShape,
    shared_shape: Option<ExpertShape>,
    quantize: ExpertQuantize,
    group: ExpertGroup,
    routed: Branch,
    shared: Option<Branch>,
    combine: ExpertCombine,
}

/// Gate and up, SwiGLU and down of one set of sizes.
#[derive(Debug, Clone)]
struct Branch {
    gate_up: Vec<ExpertGateUp>,
    swiglu: ExpertSwiglu,
    down: ExpertDown,
}

#[derive(Debug)]
struct BranchBound {
    gate_up: Vec<ExpertGateUpBound>,
    swiglu: ExpertSwigluBound,
    down: ExpertDownBound,
}

/// [`ExpertForward`] bound to its buffers.
#[derive(Debug)]
pub struct ExpertForwardBound {
    quantize: ExpertQuantizeBound,
    group: ExpertGroupBound,
    routed: BranchBound,
    shared: Option<BranchBound>,
    combine: ExpertCombineBound,
}

impl Branch {
    fn new(ctx: &Context, shape: &ExpertShape) -> Result<Self> {
        let gate_up = if shape.gate == shape.up {
            vec![ExpertGateUp::new(ctx, shape.gate, 2 * shape.n_ff, shape.n_embd)?]
        } else {
            vec![
                ExpertGateUp::new(ctx, shape.gate, shape.n_ff, shape.n_embd)?,
                ExpertGateUp::new(ctx, shape.up, shape.n_ff, shape.n_embd)?,
            ]
        };
        let down = ExpertDown::new(ctx, shape.down, shape.n_embd, shape.n_ff)?;
        Ok(Branch { gate_up, swiglu: ExpertSwiglu::new(ctx)?, down })
    }

    /// Entries that all kernels take together.
    fn per_group(&self) -> u32 {
        let gate_up = self.gate_up.iter().map(ExpertGateUp::per_group);
        gate_up.fold(self.down.per_group(), u32::min)
    }

    fn bind(
        &self,
        weights: &ExpertWeights,
        x: &Q8Buffers<'_>,
        used: u32,
        scratch: &BranchScratch,
    ) -> Result<BranchBound> {
        let s = weights.shape();
        let (groups, out) = (&scratch.groups, whole(&scratch.gate_up));
        let gate_up = (self.gate_up.iter().zip(&weights.gate_up).enumerate())
            .map(|(i, (stage, m))| stage.bind(m, x, used, groups, &out, i as u32 * s.n_ff, 2 * s.n_ff))
            .collect::<Result<_>>()?;
        let h = scratch.h.view();
        Ok(BranchBound {
            gate_up,
            swiglu: self.swiglu.bind(&out, groups.entries(), s.n_ff, &h)?,
            down: self.down.bind(&weights.down, &h, groups, &whole(&scratch.outs))?,
        })
    }
}

impl BranchBound {
    fn encode(&self, pass: &mut wgpu::ComputePass<'_>, stage: ExpertStage) -> Result<()> {
        match stage {
            ExpertStage::GateUp => self.gate_up.iter().try_for_each(|g| g.encode(pass)),
            ExpertStage::Swiglu => self.swiglu.encode(pass),
            ExpertStage::Down => self.down.encode(pass),
            _ => Ok(()),
        }
    }
}

impl ExpertForward {
    /// Compiles the stages for routed experts of `shape`, and for shared experts of another shape, if there are any:
    /// one set of matrices (`experts` is 1) that every token goes through, added last.
    ///
    /// # Errors
    /// As [`ExpertShape::check`]; [`Error::Limit`](crate::Error::Limit) when a row of activations does not fit the
    /// device's workgroup memory; what the device reports.
    pub fn new(ctx: &Context, shape: &ExpertShape, shared: Option<&ExpertShape>) -> Result<Self> {
        shape.check()?;
        if let Some(shared) = shared {
            shared.check()?;
            check(shared.experts == 1, "shared.experts", 1, shared.experts)?;
            check(shared.n_embd == shape.n_embd, "shared.n_embd", shape.n_embd, shared.n_embd)?;
        }
        Ok(ExpertForward {
            ctx: ctx.clone(),
            shape: *shape,
            shared_shape: shared.copied(),
            quantize: ExpertQuantize::new(ctx)?,
            group: ExpertGroup::new(ctx)?,
            routed: Branch::new(ctx, shape)?,
            shared: shared.map(|shared| Branch::new(ctx, shared)).transpose()?,
            combine: ExpertCombine::new(ctx)?,
        })
    }

    /// Scratch for windows of `tokens` tokens with `used` experts each.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid), [`Error::Limit`](crate::Error::Limit) when a buffer would outgrow a
    /// binding, [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn scratch(&self, tokens: u32, used: u32) -> Result<ExpertScratch> {
        let ctx = &self.ctx;
        check(tokens > 0, "tokens", "at least 1", tokens)?;
        check(used > 0, "used", "at least 1", used)?;
        let entries = tokens.saturating_mul(used);
        check(entries <= MAX_ENTRIES as u32, "tokens", format!("at most {MAX_ENTRIES} entries"), entries)?;
        let groups = ExpertGroups::new(ctx, entries, self.shape.experts, self.routed.per_group())?;
        let shared = match (&self.shared, &self.shared_shape) {
            (Some(branch), Some(shape)) => {
                let groups = ExpertGroups::of_one_expert(ctx, tokens, branch.per_group())?;
                Some(BranchScratch::new(ctx, shape, groups)?)
            }
            _ => None,
        };
        Ok(ExpertScratch {
            tokens,
            used,
            x: Q8::new(ctx, "x", u64::from(tokens) * u64::from(self.shape.n_embd / 32))?,
            routed: BranchScratch::new(ctx, &self.shape, groups)?,
            shared,
        })
    }

    /// Binds windows of the scratch's size. The result may be encoded any number of times.
    ///
    /// * `shared`: slot 0 of it are the shared experts' weights.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) naming what does not fit.
    pub fn bind(
        &self,
        weights: &ExpertWeights,
        shared: Option<&ExpertWeights>,
        buffers: &ExpertBuffers<'_>,
        scratch: &ExpertScratch,
    ) -> Result<ExpertForwardBound> {
        let (tokens, used, s, b) = (scratch.tokens, scratch.used, &self.shape, buffers);
        let same = |what: &str, want: Option<&ExpertShape>, got: Option<&ExpertShape>| {
            check(want == got, what, format!("{want:?}"), format!("{got:?}"))
        };
        same("weights", Some(s), Some(weights.shape()))?;
        same("shared", self.shared_shape.as_ref(), shared.map(ExpertWeights::shape))?;
        let bytes = 4 * u64::from(tokens) * u64::from(s.n_embd);
        check_binding("x", &b.x, bytes, BufferUsages::STORAGE)?;
        let x = scratch.x.view();
        let shared = match (&self.shared, shared, &scratch.shared) {
            (Some(branch), Some(weights), Some(scratch)) => Some(branch.bind(weights, &x, 1, scratch)?),
            _ => None,
        };
        let combine = CombineBuffers {
            experts: b.experts.clone(),
            weights: b.weights.clone(),
            slots: whole(&weights.slots),
            outs: whole(&scratch.routed.outs),
            shared: scratch.shared.as_ref().map(|shared| whole(&shared.outs)),
            y: b.y.clone(),
        };
        Ok(ExpertForwardBound {
            quantize: self.quantize.bind(&b.x, tokens * (s.n_embd / 32), &x)?,
            group: self.group.bind(&b.experts, &whole(&weights.slots), s.experts, &scratch.routed.groups)?,
            routed: self.routed.bind(weights, &x, used, &scratch.routed)?,
            shared,
            combine: self.combine.bind(tokens, used, s.experts, s.n_embd, &combine)?,
        })
    }
}

impl ExpertForwardBound {
    /// Encodes the window.
    ///
    /// # Errors
    /// [`Error::Limit`](crate::Error::Limit) when a stage needs more workgroups than the device has.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>) -> Result<()> {
        ExpertStage::ALL.iter().try_for_each(|&stage| self.encode_stage(pass, stage))
    }

    /// Encodes one stage; the others' results must be in the scratch.
    ///
    /// # Errors
    /// As [`ExpertForwardBound::encode`].
    pub fn encode_stage(&self, pass: &mut wgpu::ComputePass<'_>, stage: ExpertStage) -> Result<()> {
        match stage {
            ExpertStage::Quantize => self.quantize.encode(pass),
            ExpertStage::Group => self.group.encode(pass),
            ExpertStage::Combine => self.combine.encode(pass),
            _ => {
                self.routed.encode(pass, stage)?;
                self.shared.as_ref().map_or(Ok(()), |shared| shared.encode(pass, stage))
            }
        }
    }
}
