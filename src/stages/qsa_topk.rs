//! Top-k on an adapter: `wgsl/qsa_topk.wgsl`.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use wgpu::BufferUsages;

use super::{Dispatch, STEPS_BYTES, check_binding, check_extent};
use crate::error::Result;
use crate::gpu::{Binding, Context, Kernel, Pipeline};
use crate::shape::{BLOCK_CELLS, QsaShape};
use crate::stages::QsaScore;

/// Items of a part, which one workgroup reduces to the survivors of a budget: of 2,560 to 33,000 this and its
/// neighbours were quickest at 131,072 cells, and 256 threads quicker than 512 or 1,024.
const PART: u32 = 5120;

/// `Params` of the shader.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct TopkParams {
    /// The guarded lowering's zero.
    pub zero: u32,
    /// 0: items are scores.
    pub level: u32,
    /// 1: write ids.
    pub last: u32,
    /// Items of a row at this level, at most.
    pub items: u32,
    /// Items of a part.
    pub part: u32,
    /// Survivors that a part of the former level left.
    pub part_in: u32,
    /// Survivors that a part leaves.
    pub part_out: u32,
    /// Word vectors between rows of the source.
    pub src_stride: u32,
    /// Words between rows of the destination.
    pub dst_stride: u32,
    /// Items of a part at level 0.
    pub level0_part: u32,
    /// Items of a part at level 1, for level 2.
    pub level1_part: u32,
    /// Cells that a row of the destination has room for.
    pub max_width: u32,
}

/// One level of the selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    items: u32,
    part: u32,
    parts: u32,
}

/// The stage: cells of the best blocks.
#[derive(Debug, Clone)]
pub struct QsaTopk {
    ctx: Context,
    shape: QsaShape,
    from_scores: Arc<Pipeline>,
    from_survivors: Arc<Pipeline>,
}

/// [`QsaTopk`] bound to its buffers.
#[derive(Debug)]
pub struct QsaTopkBound {
    levels: Vec<Dispatch>,
    plan: Vec<Level>,
    survivors: u32,
    blocks: u32,
    max_width: u32,
}

/// Room for the survivors of a part: the blocks that can be needed to fill `width` cells (the tail block may bring a
/// single cell), and an eighth more, so that a part seldom has to find its exact threshold. A multiple of 4 for the sake
/// of aligned loads.
fn survivors(shape: &QsaShape) -> u32 {
    let needed = shape.max_width().div_ceil(BLOCK_CELLS) + 1;
    (needed + needed / 8).next_multiple_of(4)
}

/// The levels for `items` items: parts are reduced until one workgroup can finish.
fn plan(items: u32, survivors: u32) -> Vec<Level> {
    let part = PART.max(3 * survivors);
    let mut levels = Vec::new();
    let mut items = items;
    // A workgroup that goes through a part and a half is quicker than one more level.
    // The shader counts two kinds of blocks in one word, 16 bits each.
    while items > (part + part / 2).min(0xffff) && levels.len() < 2 {
        let parts = items.div_ceil(part);
        levels.push(Level { items, part, parts });
        items = parts * survivors;
    }
    levels.push(Level { items, part: items.next_multiple_of(4), parts: 1 });
    levels
}

impl QsaTopk {
    /// Words between rows of an id buffer: the most cells that a row selects, rounded up to whole chunks.
    pub fn id_stride(shape: &QsaShape) -> u32 {
        shape.max_chunks() * crate::shape::CHUNK_CELLS
    }

    /// Bytes of scratch that a row needs at a capacity of `blocks` blocks, for each of the two survivor buffers.
    pub fn scratch_bytes(shape: &QsaShape, blocks: u32) -> u64 {
        let s = survivors(shape);
        let most = plan(blocks + 1, s).iter().rev().skip(1).map(|l| l.parts).max().unwrap_or(0);
        (u64::from(most) * u64::from(s) * 8).max(16)
    }

    /// Compiles the stage.
    ///
    /// # Errors
    /// As [`QsaShape::check`]; what the device reports.
    pub fn new(ctx: &Context, shape: &QsaShape) -> Result<Self> {
        shape.check()?;
        let compile = |scores: bool| {
            ctx.pipeline(&Kernel {
                name: "qsa_topk",
                sources: &[
                    include_str!("../../wgsl/exact/math.wgsl"),
                    include_str!("../../wgsl/qsa_topk.wgsl"),
                ],
                entry: "main",
                bindings: &[Binding::Uniform, Binding::Uniform, Binding::Read, Binding::ReadWrite],
                constants: &[("SCORES", f64::from(scores))],
            })
        };
        Ok(QsaTopk {
            ctx: ctx.clone(),
            shape: *shape,
            from_scores: compile(true)?,
            from_survivors: compile(false)?,
        })
    }

    /// Binds the stage for up to `blocks` completed blocks.
    ///
    /// * `steps`: [`STEPS_BYTES`] of step records, usage `UNIFORM`;
    /// * `scores`: f32 `[rows][QsaScore::stride(blocks)]`;
    /// * `ids`: u32 `[rows][QsaTopk::id_stride(shape)]`; a row's entries beyond its width keep what they held;
    /// * `scratch`: two buffers of [`QsaTopk::scratch_bytes`] a row.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a buffer is too small for one row.
    pub fn bind(
        &self,
        steps: &wgpu::BufferBinding<'_>,
        blocks: u32,
        scores: &wgpu::BufferBinding<'_>,
        ids: &wgpu::BufferBinding<'_>,
        scratch: [&wgpu::BufferBinding<'_>; 2],
    ) -> Result<QsaTopkBound> {
        super::check_blocks(blocks)?;
        let s = survivors(&self.shape);
        let plan = plan(blocks + 1, s);
        let id_stride = Self::id_stride(&self.shape);
        let stride = QsaScore::stride(blocks);
        check_binding("steps", steps, STEPS_BYTES, BufferUsages::UNIFORM)?;
        check_binding("scores", scores, u64::from(stride) * 4, BufferUsages::STORAGE)?;
        check_binding("ids", ids, u64::from(id_stride) * 4, BufferUsages::STORAGE)?;
        for b in scratch {
            check_binding("scratch", b, Self::scratch_bytes(&self.shape, blocks), BufferUsages::STORAGE)?;
        }
        let scratch_stride = Self::scratch_bytes(&self.shape, blocks) as u32 / 4;
        let levels = plan.iter().enumerate().map(|(i, level)| {
            let last = i + 1 == plan.len();
            let params = TopkParams {
                zero: 0,
                level: i as u32,
                last: u32::from(last),
                items: level.items,
                part: level.part,
                part_in: s,
                part_out: s,
                src_stride: if i == 0 { stride / 4 } else { scratch_stride / 4 },
                dst_stride: if last { id_stride } else { scratch_stride },
                level0_part: plan[0].part,
                level1_part: if i == 2 { plan[1].part } else { 0 },
                max_width: id_stride.min(self.shape.max_width()),
            };
            let src = if i == 0 { scores } else { scratch[(i - 1) % 2] };
            let dst = if last { ids } else { scratch[i % 2] };
            let pipeline = if i == 0 { &self.from_scores } else { &self.from_survivors };
            Dispatch::new(&self.ctx, pipeline, "qsa_topk", &params, &[steps, src, dst])
        });
        Ok(QsaTopkBound {
            levels: levels.collect::<Result<_>>()?,
            survivors: s,
            plan: plan.clone(),
            blocks,
            max_width: self.shape.max_width(),
        })
    }
}

impl QsaTopkBound {
    /// Encodes the selection for `rows` rows, none of which sees more than `max_cells` cells.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when `rows` or `max_cells` is 0 or too large.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>, rows: u32, max_cells: u32) -> Result<()> {
        check_extent(rows, max_cells, self.blocks * BLOCK_CELLS + BLOCK_CELLS - 1)?;
        let mut items = max_cells / BLOCK_CELLS + 1;
        let last = self.levels.len() - 1;
        for (i, (dispatch, level)) in self.levels.iter().zip(&self.plan).enumerate() {
            let parts = if i == last { 1 } else { items.div_ceil(level.part) };
            // Every row is the identity: only the last level has something to write.
            if i == last || max_cells > self.max_width {
                dispatch.encode(pass, [parts, rows, 1])?;
            }
            items = parts * self.survivors;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_cover_all_items_and_end_in_one_part() {
        let s = survivors(&QsaShape::QWEN38_FLASH_NEXT);
        assert_eq!(s, 580);
        for items in [1, 4, 4096, 8192, 8193, 32_769, 65_536, 262_145] {
            let levels = plan(items, s);
            assert!(levels.len() <= 3, "the shader finds its items through two former levels");
            assert_eq!(levels[0].items, items);
            for pair in levels.windows(2) {
                assert!(pair[0].parts * pair[0].part >= pair[0].items);
                assert_eq!(pair[1].items, pair[0].parts * s);
            }
            let last = levels.last().unwrap();
            assert!(last.parts == 1 && last.part >= last.items && last.items <= 2 * PART);
        }
        // The widest budget, whatever the context: no part outgrows the shader's counters.
        let wide = survivors(&QsaShape { budget: 65_532, ..QsaShape::QWEN38_FLASH_NEXT });
        for items in (60_000..=262_145).step_by(997) {
            assert!(plan(items, wide).iter().all(|l| l.part.min(l.items) < 1 << 16), "{items}");
        }
    }
}
