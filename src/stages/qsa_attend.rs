//! Attention over the selected cells on an adapter: `wgsl/qsa_attend.wgsl` with `wgsl/kv/<format>.wgsl`.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use wgpu::BufferUsages;

use super::{Dispatch, STEPS_BYTES, check_binding, check_extent};
use crate::error::Result;
use crate::gpu::{Binding, Context, Kernel, Pipeline};
use crate::shape::{CHUNK_CELLS, KV_GROUP, KvFormat, MAX_CELLS, QsaShape};
use crate::stages::QsaTopk;

/// Heads that one workgroup serves.
const HEADS: u32 = 12;

/// `Params` of the shader.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct AttendParams {
    /// The guarded lowering's zero.
    pub zero: u32,
    /// Query heads of a KV head.
    pub group: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Tiles of 12 heads in a group.
    pub tiles: u32,
    /// Cells in a page.
    pub page_size: u32,
    /// Cells in the KV arrays.
    pub slots: u32,
    /// Entries between rows of the ids.
    pub id_stride: u32,
    /// Floats between rows of the partials.
    pub partial_stride: u32,
    /// 1: the KV arrays hold the selected cells in order.
    pub gathered: u32,
    /// 1 / sqrt(head_dim).
    pub scale: f32,
    /// Not used.
    pub spare0: u32,
    /// Not used.
    pub spare1: u32,
}

/// Keys and values in the caller's or the crate's buffers, slot-major as [`KvCells`](crate::KvCells) describes.
#[derive(Debug, Clone)]
pub struct KvBuffers<'a> {
    /// How they are kept.
    pub format: KvFormat,
    /// Cells in each array.
    pub slots: u32,
    /// Keys.
    pub k: wgpu::BufferBinding<'a>,
    /// Key scales; for f16 any storage buffer.
    pub k_scale: wgpu::BufferBinding<'a>,
    /// Values.
    pub v: wgpu::BufferBinding<'a>,
    /// Value scales; for f16 any storage buffer.
    pub v_scale: wgpu::BufferBinding<'a>,
}

/// Bytes of a cell in a key or value array, and in its scales.
pub(crate) fn cell_bytes(shape: &QsaShape, format: KvFormat) -> (u32, u32) {
    let values = shape.kv_heads * shape.head_dim;
    match format {
        KvFormat::F16 => (values * 2, 0),
        KvFormat::Int8 => (values, values / KV_GROUP * 2),
    }
}

/// The stage: chunked attention.
#[derive(Debug, Clone)]
pub struct QsaAttend {
    ctx: Context,
    shape: QsaShape,
    format: KvFormat,
    pipeline: Arc<Pipeline>,
}

/// [`QsaAttend`] bound to its buffers.
#[derive(Debug)]
pub struct QsaAttendBound {
    dispatch: Dispatch,
    shape: QsaShape,
    tiles: u32,
}

impl QsaAttend {
    /// Compiles the stage for one KV format.
    ///
    /// # Errors
    /// As [`QsaShape::check`]; what the device reports.
    pub fn new(ctx: &Context, shape: &QsaShape, format: KvFormat) -> Result<Self> {
        shape.check()?;
        let kv = match format {
            KvFormat::F16 => include_str!("../../wgsl/kv/f16.wgsl"),
            KvFormat::Int8 => include_str!("../../wgsl/kv/int8.wgsl"),
        };
        let pipeline = ctx.pipeline(&Kernel {
            name: "qsa_attend",
            sources: &[
                include_str!("../../wgsl/exact/lane.wgsl"),
                include_str!("../../wgsl/exact/math.wgsl"),
                include_str!("../../wgsl/exact/f16.wgsl"),
                kv,
                include_str!("../../wgsl/qsa_attend.wgsl"),
            ],
            entry: "main",
            bindings: &[
                Binding::Uniform,
                Binding::Uniform,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::ReadWrite,
            ],
            constants: &[("HEAD_DIM", f64::from(shape.head_dim))],
        })?;
        Ok(QsaAttend { ctx: ctx.clone(), shape: *shape, format, pipeline })
    }

    /// Binds the stage.
    ///
    /// * `steps`: [`STEPS_BYTES`] of step records, usage `UNIFORM`;
    /// * `ids`: as [`QsaTopk`] writes them; an id beyond a row's context counts as its last cell;
    /// * `page_table`: u32, one entry a page;
    /// * `queries`: f32 `[rows][q_heads][head_dim]`;
    /// * `partials`: f32 `[rows][shape.max_chunks()][q_heads][head_dim + 2]`;
    /// * `gathered`: the KV arrays hold `[rows][id_stride]` selected cells instead of slots.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when a buffer is too small for one row or of another format.
    #[allow(clippy::too_many_arguments, reason = "one argument a binding")]
    pub fn bind(
        &self,
        steps: &wgpu::BufferBinding<'_>,
        ids: &wgpu::BufferBinding<'_>,
        page_table: &wgpu::BufferBinding<'_>,
        queries: &wgpu::BufferBinding<'_>,
        kv: &KvBuffers<'_>,
        gathered: bool,
        partials: &wgpu::BufferBinding<'_>,
    ) -> Result<QsaAttendBound> {
        let shape = &self.shape;
        crate::error::check(kv.format == self.format, "kv.format", self.format.name(), kv.format.name())?;
        let (values, scales) = cell_bytes(shape, kv.format);
        let slots = u64::from(kv.slots);
        let id_stride = QsaTopk::id_stride(shape);
        let partial_stride = shape.max_chunks() * shape.partial_chunk();
        check_binding("steps", steps, STEPS_BYTES, BufferUsages::UNIFORM)?;
        check_binding("ids", ids, u64::from(id_stride) * 4, BufferUsages::STORAGE)?;
        check_binding("page_table", page_table, 4, BufferUsages::STORAGE)?;
        check_binding(
            "query",
            queries,
            u64::from(shape.q_heads * shape.head_dim) * 4,
            BufferUsages::STORAGE,
        )?;
        check_binding("kv.k", &kv.k, slots * u64::from(values), BufferUsages::STORAGE)?;
        check_binding("kv.k_scale", &kv.k_scale, slots * u64::from(scales), BufferUsages::STORAGE)?;
        check_binding("kv.v", &kv.v, slots * u64::from(values), BufferUsages::STORAGE)?;
        check_binding("kv.v_scale", &kv.v_scale, slots * u64::from(scales), BufferUsages::STORAGE)?;
        check_binding("partials", partials, u64::from(partial_stride) * 4, BufferUsages::STORAGE)?;
        let tiles = shape.group().div_ceil(HEADS);
        let params = AttendParams {
            zero: 0,
            group: shape.group(),
            kv_heads: shape.kv_heads,
            tiles,
            page_size: shape.page_size,
            slots: kv.slots,
            id_stride,
            partial_stride,
            gathered: u32::from(gathered),
            scale: shape.scale(),
            spare0: 0,
            spare1: 0,
        };
        let buffers = [steps, ids, page_table, queries, &kv.k, &kv.k_scale, &kv.v, &kv.v_scale, partials];
        let dispatch = Dispatch::new(&self.ctx, &self.pipeline, "qsa_attend", &params, &buffers)?;
        Ok(QsaAttendBound { dispatch, shape: *shape, tiles })
    }
}

impl QsaAttendBound {
    /// Encodes the attention of `rows` rows, none of which sees more than `max_cells` cells.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when `rows` or `max_cells` is 0 or too large.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>, rows: u32, max_cells: u32) -> Result<()> {
        check_extent(rows, max_cells, MAX_CELLS)?;
        let chunks = max_cells.min(self.shape.max_width()).div_ceil(CHUNK_CELLS);
        self.dispatch.encode(pass, [chunks, rows, self.shape.kv_heads * self.tiles])
    }
}
