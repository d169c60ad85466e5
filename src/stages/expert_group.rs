//! Grouping of entries by expert on an adapter: `wgsl/expert_group.wgsl`.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use wgpu::{BufferBinding, BufferUsages};

use super::{Dispatch, check_binding, whole};
use crate::error::{Result, check};
use crate::gpu::{Binding, Context, Kernel, Pipeline};
use crate::shape::{MAX_ENTRIES, MAX_EXPERTS};

/// Words of a group: slot, number of entries, two of no use, four entries.
const GROUP_WORDS: u32 = 8;

/// In the map of slots: the expert is not on the device.
pub const NO_SLOT: u32 = u32::MAX;

/// `Params` of the shader.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct GroupParams {
    /// Not used.
    pub zero: u32,
    /// Entries of the window.
    pub entries: u32,
    /// Experts of the layer.
    pub experts: u32,
    /// Entries of a group: 1 to 4.
    pub per_group: u32,
    /// Groups that there is room for.
    pub max_groups: u32,
    /// Not used.
    pub spare0: u32,
    /// Not used.
    pub spare1: u32,
    /// Not used.
    pub spare2: u32,
}

/// Groups on the device, for a fixed number of entries.
#[derive(Debug)]
pub struct ExpertGroups {
    entries: u32,
    experts: u32,
    per_group: u32,
    max_groups: u32,
    buffer: wgpu::Buffer,
}

impl ExpertGroups {
    /// Room for the groups of `entries` entries over `experts` experts, `per_group` of them together.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a number is 0 or too large; what the device reports.
    pub fn new(ctx: &Context, entries: u32, experts: u32, per_group: u32) -> Result<Self> {
        check(
            (1..=MAX_ENTRIES as u32).contains(&entries),
            "entries",
            format!("1 to {MAX_ENTRIES}"),
            entries,
        )?;
        check((1..=MAX_EXPERTS).contains(&experts), "experts", format!("1 to {MAX_EXPERTS}"), experts)?;
        check((1..=4).contains(&per_group), "per_group", "1 to 4", per_group)?;
        // Each expert may leave one group that is not full.
        let max_groups = entries.min(experts + entries / per_group);
        let buffer = ctx.zeros("groups", 4 * u64::from(4 + GROUP_WORDS * max_groups))?;
        Ok(ExpertGroups { entries, experts, per_group, max_groups, buffer })
    }

    /// Every one of `entries` entries goes to slot 0: what shared experts are. Nothing need be encoded to fill it.
    ///
    /// # Errors
    /// As [`ExpertGroups::new`].
    pub fn of_one_expert(ctx: &Context, entries: u32, per_group: u32) -> Result<Self> {
        let groups = ExpertGroups::new(ctx, entries, 1, per_group)?;
        let ids: Vec<u32> = (0..entries).collect();
        let mut words = vec![entries.div_ceil(per_group), 0, 0, 0];
        for group in ids.chunks(per_group as usize) {
            words.extend([0, group.len() as u32, 0, 0]);
            words.extend((0..4).map(|i| group.get(i).copied().unwrap_or_default()));
        }
        ctx.write(&groups.buffer, 0, &words)?;
        Ok(groups)
    }

    /// Entries that are grouped.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Entries of a group at most.
    pub fn per_group(&self) -> u32 {
        self.per_group
    }

    /// Groups at most.
    pub fn max_groups(&self) -> u32 {
        self.max_groups
    }

    /// u32: the number of groups; from word 4 on 8 words each: slot, number of entries, two of no use, the entries.
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}

/// The stage.
#[derive(Debug, Clone)]
pub struct ExpertGroup {
    ctx: Context,
    pipeline: Arc<Pipeline>,
}

/// [`ExpertGroup`] bound to its buffers.
#[derive(Debug)]
pub struct ExpertGroupBound {
    dispatch: Dispatch,
}

impl ExpertGroup {
    /// Compiles the stage.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(ctx: &Context) -> Result<Self> {
        let pipeline = ctx.pipeline(&Kernel {
            name: "expert_group",
            sources: &[include_str!("../../wgsl/expert_group.wgsl")],
            entry: "main",
            bindings: &[Binding::Uniform, Binding::Read, Binding::Read, Binding::ReadWrite],
            constants: &[],
        })?;
        Ok(ExpertGroup { ctx: ctx.clone(), pipeline })
    }

    /// Binds the stage.
    ///
    /// * `experts`: u32, the expert of each entry; one beyond `count` is in no group;
    /// * `slots`: u32 `[count]`, the slot of each expert's weights or [`NO_SLOT`].
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a buffer is too small, or `count` is 0 or more than `groups` has room
    /// for.
    pub fn bind(
        &self,
        experts: &BufferBinding<'_>,
        slots: &BufferBinding<'_>,
        count: u32,
        groups: &ExpertGroups,
    ) -> Result<ExpertGroupBound> {
        let room = groups.experts;
        check(
            (1..=room).contains(&count),
            "experts",
            format!("1 to {room}, which the groups have room for"),
            count,
        )?;
        check_binding("routing.experts", experts, 4 * u64::from(groups.entries), BufferUsages::STORAGE)?;
        check_binding("slots", slots, 4 * u64::from(count), BufferUsages::STORAGE)?;
        let params = GroupParams {
            zero: 0,
            entries: groups.entries,
            experts: count,
            per_group: groups.per_group,
            max_groups: groups.max_groups,
            spare0: 0,
            spare1: 0,
            spare2: 0,
        };
        let buffers = [experts, slots, &whole(&groups.buffer)];
        let dispatch = Dispatch::new(&self.ctx, &self.pipeline, "expert_group", &params, &buffers)?;
        Ok(ExpertGroupBound { dispatch })
    }
}

impl ExpertGroupBound {
    /// Encodes the grouping.
    ///
    /// # Errors
    /// None but a lost device's.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>) -> Result<()> {
        self.dispatch.encode(pass, [1, 1, 1])
    }
}
