//! What `expert_gate_up` and `expert_down` share: quantised matrices on the device, and rows of them times activations.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use wgpu::{BufferBinding, BufferUsages};

use super::expert_group::ExpertGroups;
use super::{Dispatch, check_binding, whole};
use crate::error::{Error, Result, check};
use crate::gpu::{Binding, Context, Kernel, Pipeline};
use crate::quant::Format;
use crate::quant::packed::{Packed, PackedRows};
use crate::shape::MAX_COLUMNS;

/// Threads of a workgroup; eight share a row.
const THREADS: u32 = 256;
/// Bytes of workgroup memory beside the staged activations and the codebook: four sums for each thread, and padding.
const SUMS_BYTES: u32 = THREADS / 8 * 9 * 16;
/// Workgroups that a dispatch should have at least, where there are as many tiles: enough for large devices.
const WORKGROUPS: u32 = 1024;
/// Tiles of a workgroup at most.
const MAX_TILES: u32 = 8;

/// `Params` of the shaders.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct RowsParams {
    /// The guarded lowering's zero.
    pub zero: u32,
    /// First slot of this piece of the matrices.
    pub first_slot: u32,
    /// Slots of this piece.
    pub slots: u32,
    /// Where the rows go in an entry's output.
    pub first_row: u32,
    /// Floats between entries of the output.
    pub out_stride: u32,
    /// Entries of a token that share its activations.
    pub per_token: u32,
    /// Entries that there are.
    pub entries: u32,
    /// Groups that there is room for.
    pub max_groups: u32,
}

/// One matrix of each expert on the device, in slots; a slot is written as a whole or in parts, at any time.
#[derive(Debug)]
pub struct ExpertMatrices {
    ctx: Context,
    format: Format,
    rows: u32,
    columns: u32,
    slots: u32,
    packed: Packed,
    pieces: Vec<Piece>,
}

/// Slots that one pair of bindings covers.
#[derive(Debug)]
struct Piece {
    first: u32,
    slots: u32,
    codes: wgpu::Buffer,
    rest: wgpu::Buffer,
}

/// Checks the size of a matrix.
fn check_size(format: Format, rows: u32, columns: u32) -> Result<()> {
    let block = format.block_values().max(32) as u32;
    check(
        (1..=MAX_COLUMNS).contains(&columns) && columns.is_multiple_of(block),
        "columns",
        format!("a multiple of {block}, at most {MAX_COLUMNS}"),
        columns,
    )?;
    check(rows > 0, "rows", "at least 1", rows)
}

impl ExpertMatrices {
    /// Room for `slots` matrices of `rows` rows of `columns` values. Split where it is larger than one binding.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `columns` is no multiple of the format's block and of 32, or too large, or a number is 0;
    /// [`Error::Limit`] when one matrix is larger than a binding, [`Error::OutOfMemory`].
    pub fn new(ctx: &Context, format: Format, rows: u32, columns: u32, slots: u32) -> Result<Self> {
        check_size(format, rows, columns)?;
        check(slots > 0, "slots", "at least 1", slots)?;
        let packed = Packed::new(format, columns as usize);
        let bytes = |row: usize| u64::from(rows) * row as u64;
        let (codes, rest) = (bytes(packed.codes_bytes()), bytes(packed.rest_bytes()));
        let most = ctx.max_binding().min(ctx.limits().max_buffer_size);
        // Words are counted in 32 bits.
        let fit = (most / codes.max(rest)).min((1 << 31) / codes.max(rest));
        if fit == 0 {
            let what = format!("one expert's matrix of {rows} rows of {columns} values");
            return Err(Error::Limit { what, asked: codes.max(rest), allowed: most });
        }
        let mut pieces = Vec::new();
        let mut first = 0;
        while first < slots {
            let slots = u64::from(slots - first).min(fit) as u32;
            let name = format!("{} of slots {first} to {}", format.name(), first + slots - 1);
            pieces.push(Piece {
                first,
                slots,
                codes: ctx.zeros(&name, codes * u64::from(slots))?,
                rest: ctx.zeros(&name, rest * u64::from(slots))?,
            });
            first += slots;
        }
        Ok(ExpertMatrices { ctx: ctx.clone(), format, rows, columns, slots, packed, pieces })
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Slots that there are.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|p| p.codes.size() + p.rest.size()).sum()
    }

    fn piece(&self, slot: u32) -> Result<(&Piece, u64)> {
        let piece = self.pieces.iter().find(|p| slot >= p.first && slot - p.first < p.slots);
        let piece = piece.ok_or_else(|| Error::invalid("slot", format!("below {}", self.slots), slot))?;
        Ok((piece, u64::from(slot - piece.first) * u64::from(self.rows)))
    }

    /// Writes rows of a slot's matrix from `first_row` on: whole rows of ggml's blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the slot or the rows are not there; what the device reports.
    pub fn write(&self, slot: u32, first_row: u32, blocks: &[u8]) -> Result<()> {
        let (piece, row) = self.piece(slot)?;
        let bytes = self.packed.row_bytes();
        check(
            blocks.len().is_multiple_of(bytes)
                && blocks.len() / bytes <= (self.rows - first_row.min(self.rows)) as usize,
            "blocks",
            format!("whole rows of {bytes} bytes, at most {}", self.rows - first_row.min(self.rows)),
            format!("{} bytes", blocks.len()),
        )?;
        let mut rows = PackedRows::default();
        self.packed.pack(blocks, &mut rows);
        let at = |row_bytes: usize| (row + u64::from(first_row)) * row_bytes as u64;
        self.ctx.write(&piece.codes, at(self.packed.codes_bytes()), &rows.codes)?;
        self.ctx.write(&piece.rest, at(self.packed.rest_bytes()), &rows.rest)
    }

    /// Reads a slot's matrix back, as ggml's blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the slot is not there; what the device reports.
    pub fn read(&self, slot: u32) -> Result<Vec<u8>> {
        let (piece, row) = self.piece(slot)?;
        let read = |buffer: &wgpu::Buffer, row_bytes: usize| {
            self.ctx.read(buffer, row * row_bytes as u64, self.rows as usize * row_bytes)
        };
        Ok(self.packed.unpack(&PackedRows {
            codes: read(&piece.codes, self.packed.codes_bytes())?,
            rest: read(&piece.rest, self.packed.rest_bytes())?,
        }))
    }
}

/// WGSL of a format: in what order its kernel wants the activations, what is common to formats like it, its own file.
fn pieces(format: Format) -> Vec<&'static str> {
    const NATURAL: &str = include_str!("../../wgsl/expert/natural.wgsl");
    const PAIRS: &str = include_str!("../../wgsl/expert/pairs.wgsl");
    const QUARTERS: &str = include_str!("../../wgsl/expert/quarters.wgsl");
    const PLAIN: &str = include_str!("../../wgsl/expert/plain.wgsl");
    const MINIMUM: &str = include_str!("../../wgsl/expert/minimum.wgsl");
    const REST: &str = include_str!("../../wgsl/expert/rest.wgsl");
    const SIGNS: &str = include_str!("../../wgsl/expert/signs.wgsl");
    match format {
        Format::Iq1M => vec![NATURAL, PLAIN, REST, include_str!("../../wgsl/quant/iq1_m.wgsl")],
        Format::Iq2Xxs => vec![NATURAL, PLAIN, SIGNS, include_str!("../../wgsl/quant/iq2_xxs.wgsl")],
        Format::Iq2Xs => vec![NATURAL, PLAIN, SIGNS, include_str!("../../wgsl/quant/iq2_xs.wgsl")],
        Format::Iq2S => vec![NATURAL, PLAIN, SIGNS, include_str!("../../wgsl/quant/iq2_s.wgsl")],
        Format::Iq3Xxs => vec![NATURAL, PLAIN, SIGNS, include_str!("../../wgsl/quant/iq3_xxs.wgsl")],
        Format::Iq3S => vec![NATURAL, PLAIN, SIGNS, include_str!("../../wgsl/quant/iq3_s.wgsl")],
        Format::Iq4Xs => vec![PAIRS, PLAIN, REST, include_str!("../../wgsl/quant/iq4_xs.wgsl")],
        Format::Iq4Nl => vec![PAIRS, include_str!("../../wgsl/quant/iq4_nl.wgsl")],
        Format::Q2_0 => vec![QUARTERS, include_str!("../../wgsl/quant/q2_0.wgsl")],
        Format::Q4K => vec![NATURAL, MINIMUM, REST, include_str!("../../wgsl/quant/q4_k.wgsl")],
        Format::Q5K => vec![NATURAL, MINIMUM, REST, include_str!("../../wgsl/quant/q5_k.wgsl")],
        Format::Q6K => vec![NATURAL, PLAIN, REST, include_str!("../../wgsl/quant/q6_k.wgsl")],
        Format::Q5_1 => vec![NATURAL, MINIMUM, REST, include_str!("../../wgsl/quant/q5_1.wgsl")],
        Format::Q8_0 => vec![NATURAL, PLAIN, REST, include_str!("../../wgsl/quant/q8_0.wgsl")],
    }
}

/// A stage of rows, compiled for one format and size.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    ctx: Context,
    name: &'static str,
    rows: u32,
    columns: u32,
    format: Format,
    per_group: u32,
    pipeline: Arc<Pipeline>,
    codebook: wgpu::Buffer,
}

/// [`Rows`] bound to its buffers.
#[derive(Debug)]
pub(super) struct RowsBound {
    dispatches: Vec<Dispatch>,
    workgroups: u32,
    max_groups: u32,
}

/// Blocks of activations on the device.
#[derive(Debug, Clone)]
pub struct Q8Buffers<'a> {
    /// Codes, `[rows][blocks]` of 32 bytes.
    pub codes: BufferBinding<'a>,
    /// Scale and sum of each block, f32 pairs whose values are f16's.
    pub scales: BufferBinding<'a>,
}

impl Rows {
    pub(super) fn new(
        ctx: &Context,
        name: &'static str,
        source: &'static str,
        format: Format,
        rows: u32,
        columns: u32,
    ) -> Result<Self> {
        check_size(format, rows, columns)?;
        let words = format.codebook();
        // The codebook of IQ1_M stays where it is.
        let codebook_bytes = if format == Format::Iq1M { 0 } else { 4 * words.len() as u32 };
        let extra = match format {
            Format::Q2_0 | Format::Q4K | Format::Q5K | Format::Q5_1 => 4,
            _ => 0,
        };
        let entry = columns / 32 * (32 + 4 + extra);
        let allowed = ctx.limits().max_compute_workgroup_storage_size;
        // 16 bytes for each of the arrays' ends.
        let asked = |n: u32| SUMS_BYTES + codebook_bytes + n * entry + 64;
        let Some(per_group) = [4, 2, 1].into_iter().find(|&n| asked(n) <= allowed) else {
            let what =
                format!("max_compute_workgroup_storage_size for {} of {columns} columns", format.name());
            return Err(Error::Limit { what, asked: asked(1).into(), allowed: allowed.into() });
        };
        let mut sources =
            vec![include_str!("../../wgsl/exact/math.wgsl"), include_str!("../../wgsl/exact/f16.wgsl")];
        sources.extend(pieces(format));
        sources.extend([include_str!("../../wgsl/expert/rows.wgsl"), source]);
        let pipeline = ctx.pipeline(&Kernel {
            name,
            sources: &sources,
            entry: "main",
            bindings: &[
                Binding::Uniform,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::Read,
                Binding::ReadWrite,
            ],
            constants: &[
                ("COLUMNS", columns.into()),
                ("ROWS", rows.into()),
                ("THREADS", THREADS.into()),
                ("ENTRIES", per_group.into()),
            ],
        })?;
        let codebook = ctx.storage("codebook", if words.is_empty() { &[0; 4] } else { words.as_slice() })?;
        Ok(Rows { ctx: ctx.clone(), name, rows, columns, format, per_group, pipeline, codebook })
    }

    pub(super) fn per_group(&self) -> u32 {
        self.per_group
    }

    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// `out`: f32, entry `i` at `i * out_stride + first_row`.
    #[allow(clippy::too_many_arguments, reason = "a stage's inputs")]
    pub(super) fn bind(
        &self,
        matrices: &ExpertMatrices,
        x: &Q8Buffers<'_>,
        per_token: u32,
        groups: &ExpertGroups,
        out: &BufferBinding<'_>,
        first_row: u32,
        out_stride: u32,
    ) -> Result<RowsBound> {
        let m = matrices;
        check(
            (m.format, m.rows, m.columns) == (self.format, self.rows, self.columns),
            "matrices",
            format!("{} of {} x {}", self.format.name(), self.rows, self.columns),
            format!("{} of {} x {}", m.format.name(), m.rows, m.columns),
        )?;
        check(
            groups.per_group() <= self.per_group,
            "groups",
            format!("at most {} entries a group", self.per_group),
            groups.per_group(),
        )?;
        check(per_token > 0, "used", "at least 1", per_token)?;
        let entries = groups.entries();
        let blocks = u64::from(entries.div_ceil(per_token)) * u64::from(self.columns / 32);
        check_binding("x.codes", &x.codes, blocks * 32, BufferUsages::STORAGE)?;
        check_binding("x.scales", &x.scales, blocks * 8, BufferUsages::STORAGE)?;
        let end = u64::from(first_row) + u64::from(self.rows);
        check(end <= u64::from(out_stride), "out_stride", format!("at least {end}"), out_stride)?;
        check_binding("out", out, u64::from(entries) * u64::from(out_stride) * 4, BufferUsages::STORAGE)?;
        let dispatches = m
            .pieces
            .iter()
            .map(|piece| {
                let params = RowsParams {
                    zero: 0,
                    first_slot: piece.first,
                    slots: piece.slots,
                    first_row,
                    out_stride,
                    per_token,
                    entries,
                    max_groups: groups.max_groups(),
                };
                let (codes, rest) = (whole(&piece.codes), whole(&piece.rest));
                let (codebook, records) = (whole(&self.codebook), whole(groups.buffer()));
                let buffers = [&codes, &rest, &codebook, &x.codes, &x.scales, &records, out];
                Dispatch::new(&self.ctx, &self.pipeline, self.name, &params, &buffers)
            })
            .collect::<Result<Vec<_>>>()?;
        // A workgroup goes through several tiles with what it has staged, unless that leaves the device idle.
        let tiles = self.rows.div_ceil(THREADS / 8);
        let each = (tiles.saturating_mul(groups.max_groups()) / WORKGROUPS).clamp(1, MAX_TILES);
        Ok(RowsBound { dispatches, workgroups: tiles.div_ceil(each), max_groups: groups.max_groups() })
    }
}

impl RowsBound {
    pub(super) fn encode(&self, pass: &mut wgpu::ComputePass<'_>) -> Result<()> {
        let [y, z] = super::fold(self.max_groups);
        self.dispatches.iter().try_for_each(|d| d.encode(pass, [self.workgroups, y, z]))
    }
}
