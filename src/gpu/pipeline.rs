//! Kernels and the pipelines built from them.

use std::num::NonZeroU64;
use std::sync::Arc;

use naga::{AddressSpace, ShaderStage, StorageAccess};

use super::context::Context;
use super::lowering::{Arithmetic, Lowering};
use super::spirv;
use super::vulkan::SpirvTarget;
use crate::error::{Error, Result, check};

/// A compute kernel in WGSL.
///
/// The text handed to the device is the lowering's two pieces, then `sources` in order. The lowering's pieces define
/// `f_add`, `f_sub`, `f_mul` and `f_fma` (and their vector forms); the guarded ones read `params.zero`, so that every
/// kernel has a uniform `params` with a `u32` member `zero` that the host sets to 0.
///
/// Every loop must end whatever the buffers hold: only on software rasterisers is a loop given a counter that ends it
/// (Mesa's compile times explode without). On hardware the counter keeps drivers from unrolling: the score kernel's
/// leaf loop took 9.8 us with it and 5.5 us without on an H200.
#[derive(Debug, Clone, Copy)]
pub struct Kernel<'a> {
    /// For labels and error messages; not part of the pipeline's identity.
    pub name: &'a str,
    /// The kernel's own WGSL, concatenated.
    pub sources: &'a [&'a str],
    /// The entry point.
    pub entry: &'a str,
    /// Binding `i` is at `@group(0) @binding(i)`.
    pub bindings: &'a [Binding],
    /// Values of `override` constants.
    pub constants: &'a [(&'a str, f64)],
}

/// What is bound at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Binding {
    /// `var<uniform>`.
    Uniform,
    /// `var<uniform>` whose offset is given when the bind group is set, in multiples of the device's
    /// `min_uniform_buffer_offset_alignment`.
    UniformDynamic,
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    ReadWrite,
}

impl Binding {
    fn ty(self) -> wgpu::BufferBindingType {
        match self {
            Binding::Uniform | Binding::UniformDynamic => wgpu::BufferBindingType::Uniform,
            Binding::Read => wgpu::BufferBindingType::Storage { read_only: true },
            Binding::ReadWrite => wgpu::BufferBindingType::Storage { read_only: false },
        }
    }

    fn accepts(self, space: AddressSpace) -> bool {
        match (self, space) {
            (Binding::Uniform | Binding::UniformDynamic, AddressSpace::Uniform) => true,
            (Binding::Read, AddressSpace::Storage { access }) => !access.contains(StorageAccess::STORE),
            (Binding::ReadWrite, AddressSpace::Storage { access }) => access.contains(StorageAccess::STORE),
            _ => false,
        }
    }
}

/// A compiled kernel.
#[derive(Debug)]
pub struct Pipeline {
    /// The pipeline, to be set on a compute pass.
    pub raw: wgpu::ComputePipeline,
    /// The layout of its only bind group, group 0.
    pub layout: wgpu::BindGroupLayout,
    /// Threads of a workgroup.
    pub workgroup_size: [u32; 3],
    name: String,
    bindings: Vec<(Binding, u64)>,
}

impl Pipeline {
    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the bind group: resource `i` at binding `i`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the number of resources, an offset or a size does not fit the kernel,
    /// [`Error::Limit`] when a binding is larger than the device allows, [`Error::DeviceLost`], [`Error::Gpu`].
    pub fn bind(
        &self,
        context: &Context,
        resources: &[wgpu::BindingResource<'_>],
    ) -> Result<wgpu::BindGroup> {
        context.check_alive()?;
        let what = |i: usize| format!("{}: binding {i}", self.name);
        check(
            resources.len() == self.bindings.len(),
            &format!("{}: bindings", self.name),
            self.bindings.len(),
            resources.len(),
        )?;
        let limits = context.limits();
        for (i, (resource, &(binding, least))) in resources.iter().zip(&self.bindings).enumerate() {
            let wgpu::BindingResource::Buffer(buffer) = resource else {
                return Err(Error::invalid(what(i), "a buffer", "another kind of resource"));
            };
            let (limit, allowed, alignment) = match binding {
                Binding::Uniform | Binding::UniformDynamic => (
                    "max_uniform_buffer_binding_size",
                    limits.max_uniform_buffer_binding_size,
                    limits.min_uniform_buffer_offset_alignment,
                ),
                Binding::Read | Binding::ReadWrite => (
                    "max_storage_buffer_binding_size",
                    context.max_binding(),
                    limits.min_storage_buffer_offset_alignment,
                ),
            };
            let whole = buffer.buffer.size();
            let size = buffer.size.map_or(whole.saturating_sub(buffer.offset), NonZeroU64::get);
            check(
                buffer.offset.checked_add(size).is_some_and(|end| end <= whole),
                &what(i),
                format!("bytes within the buffer's {whole}"),
                format!("{size} bytes at {}", buffer.offset),
            )?;
            check(
                buffer.offset.is_multiple_of(u64::from(alignment.max(1))),
                &what(i),
                format!("an offset that is a multiple of {alignment}"),
                buffer.offset,
            )?;
            check(size >= least.max(1), &what(i), format!("at least {} bytes", least.max(1)), size)?;
            if size > allowed {
                return Err(Error::Limit { what: limit.into(), asked: size, allowed });
            }
        }
        let entries: Vec<_> = (0..)
            .zip(resources)
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource: resource.clone() })
            .collect();
        context.scoped(&self.name, 0, || {
            context.device().create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(&self.name),
                layout: &self.layout,
                entries: &entries,
            })
        })
    }
}

/// Everything that changes a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    lowering: Lowering,
    source: String,
    entry: String,
    bindings: Vec<Binding>,
    constants: Vec<(String, u64)>,
}

impl Key {
    pub(super) fn new(kernel: &Kernel<'_>, lowering: Lowering) -> Key {
        let mut constants: Vec<_> =
            kernel.constants.iter().map(|&(name, value)| (name.to_owned(), value.to_bits())).collect();
        constants.sort_unstable();
        let source = lowering.pieces().iter().chain(kernel.sources).copied().collect();
        Key {
            lowering,
            source,
            entry: kernel.entry.to_owned(),
            bindings: kernel.bindings.to_vec(),
            constants,
        }
    }
}

/// A kernel after naga: with its constants in place and known to be valid.
struct Translated {
    workgroup_size: [u32; 3],
    workgroup_storage: u64,
    /// The fewest bytes that each binding needs: for a run-time sized array those of one element.
    least: Vec<u64>,
    /// Present when the lowering is precise.
    spirv: Option<Vec<u32>>,
}

fn translate(
    name: &str,
    key: &Key,
    features: wgpu::Features,
    target: Option<SpirvTarget>,
    bound_loops: bool,
) -> Result<Translated> {
    let failed = |reason: String| Error::Gpu { what: format!("kernel {name}"), reason };
    let module = naga::front::wgsl::parse_str(&key.source)
        .map_err(|e| failed(e.emit_to_string_with_path(&key.source, name)))?;
    let mut capabilities = naga::valid::Capabilities::empty();
    if features.contains(wgpu::Features::SUBGROUP) {
        capabilities |= naga::valid::Capabilities::SUBGROUP | naga::valid::Capabilities::SUBGROUP_BARRIER;
    }
    if features.contains(wgpu::Features::SHADER_F16) {
        capabilities |= naga::valid::Capabilities::SHADER_FLOAT16;
    }
    let info = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|e| failed(e.emit_to_string_with_path(&key.source, name)))?;
    let mut constants = naga::back::PipelineConstants::default();
    for (constant, bits) in &key.constants {
        constants.insert(constant.clone(), f64::from_bits(*bits));
    }
    let (module, info) = naga::back::pipeline_constants::process_overrides(
        &module,
        &info,
        Some((ShaderStage::Compute, &key.entry)),
        &constants,
    )
    .map_err(|e| failed(e.to_string()))?;
    let Some(entry) =
        module.entry_points.iter().find(|e| e.stage == ShaderStage::Compute && e.name == key.entry)
    else {
        return Err(failed(format!("no compute entry point {}", key.entry)));
    };

    // wgpu compares a shader with its layout, but not one that it never sees as WGSL. A binding that is too small
    // would be read out of bounds in silence, so the comparison is made here for every lowering.
    let mut least = vec![0; key.bindings.len()];
    let mut workgroup_storage = 0u64;
    for (_, variable) in module.global_variables.iter() {
        let variable_name = variable.name.as_deref().unwrap_or("?");
        let size = module.types[variable.ty].inner.try_size(module.to_ctx());
        let size = u64::from(size.ok_or_else(|| failed(format!("{variable_name} is too large")))?);
        if variable.space == AddressSpace::WorkGroup {
            workgroup_storage += size.next_multiple_of(16);
        }
        let Some(binding) = &variable.binding else { continue };
        let i = binding.binding as usize;
        if binding.group != 0 || !key.bindings.get(i).is_some_and(|b| b.accepts(variable.space)) {
            return Err(failed(format!(
                "{variable_name} at group {} binding {i} is not what the kernel's list of bindings has there: {:?}",
                binding.group,
                key.bindings.get(i)
            )));
        }
        least[i] = least[i].max(size);
    }

    let spirv = match (key.lowering.arithmetic, target) {
        (Arithmetic::Guarded, _) => None,
        (Arithmetic::Precise, None) => {
            return Err(failed(
                "a precise lowering needs a Vulkan device with the feature PASSTHROUGH_SHADERS".into(),
            ));
        }
        (Arithmetic::Precise, Some(target)) => {
            let words = write_spirv(&module, &info, key, features, target, bound_loops)
                .map_err(|e| failed(e.to_string()))?;
            Some(spirv::make_precise(&words, target.float_controls)?)
        }
    };
    Ok(Translated { workgroup_size: entry.workgroup_size, workgroup_storage, least, spirv })
}

fn write_spirv(
    module: &naga::Module,
    info: &naga::valid::ModuleInfo,
    key: &Key,
    features: wgpu::Features,
    target: SpirvTarget,
    bound_loops: bool,
) -> Result<Vec<u32>, naga::back::spv::Error> {
    use naga::back::spv;
    use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};

    let mut capabilities = vec![spv::Capability::Shader];
    if features.contains(wgpu::Features::SUBGROUP) {
        capabilities.extend([
            spv::Capability::GroupNonUniform,
            spv::Capability::GroupNonUniformVote,
            spv::Capability::GroupNonUniformArithmetic,
            spv::Capability::GroupNonUniformBallot,
            spv::Capability::GroupNonUniformShuffle,
            spv::Capability::GroupNonUniformShuffleRelative,
            spv::Capability::GroupNonUniformQuad,
        ]);
    }
    if features.contains(wgpu::Features::SHADER_F16) {
        capabilities.push(spv::Capability::Float16);
    }
    if target.integer_dot_product {
        capabilities.extend([
            spv::Capability::DotProductKHR,
            spv::Capability::DotProductInputAllKHR,
            spv::Capability::DotProductInput4x8BitKHR,
            spv::Capability::DotProductInput4x8BitPackedKHR,
        ]);
    }
    let options = spv::Options {
        lang_version: target.version,
        flags: spv::WriterFlags::empty(),
        fake_missing_bindings: false,
        // wgpu numbers the bindings of a layout from 0 without gaps, which is how kernels number theirs.
        binding_map: (0..key.bindings.len() as u32)
            .map(|binding| {
                let at = naga::ResourceBinding { group: 0, binding };
                (at, spv::BindingInfo { descriptor_set: 0, binding, binding_array_size: None })
            })
            .collect(),
        capabilities: Some(capabilities.into_iter().collect()),
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Restrict,
            // As wgpu does for its own modules: where the device checks every access, the shader need not.
            buffer: if target.robust_buffers {
                BoundsCheckPolicy::Unchecked
            } else {
                BoundsCheckPolicy::Restrict
            },
            image_load: BoundsCheckPolicy::Restrict,
            binding_array: BoundsCheckPolicy::Restrict,
        },
        // Kernels never read workgroup memory that they have not written, so that clearing it only costs time.
        // The guarded lowering asks wgpu for the same.
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: bound_loops,
        ..Default::default()
    };
    let pipeline =
        spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: key.entry.clone() };
    spv::write_vec(module, info, &options, Some(&pipeline))
}

/// Compiles a kernel.
pub(super) fn build(context: &Context, name: &str, key: &Key) -> Result<Arc<Pipeline>> {
    let limits = context.limits();
    let within = |what: &str, asked: u64, allowed: u64| {
        if asked <= allowed { Ok(()) } else { Err(Error::Limit { what: what.into(), asked, allowed }) }
    };
    let count = |wanted: &[Binding]| key.bindings.iter().filter(|b| wanted.contains(b)).count() as u64;
    within(
        "max_storage_buffers_per_shader_stage",
        count(&[Binding::Read, Binding::ReadWrite]),
        limits.max_storage_buffers_per_shader_stage.into(),
    )?;
    within(
        "max_uniform_buffers_per_shader_stage",
        count(&[Binding::Uniform, Binding::UniformDynamic]),
        limits.max_uniform_buffers_per_shader_stage.into(),
    )?;

    let bound_loops = context.info().device_type == wgpu::DeviceType::Cpu;
    let translated = translate(name, key, context.device().features(), context.spirv_target(), bound_loops)?;
    let [x, y, z] = translated.workgroup_size;
    within("max_compute_workgroup_size_x", x.into(), limits.max_compute_workgroup_size_x.into())?;
    within("max_compute_workgroup_size_y", y.into(), limits.max_compute_workgroup_size_y.into())?;
    within("max_compute_workgroup_size_z", z.into(), limits.max_compute_workgroup_size_z.into())?;
    within(
        "max_compute_invocations_per_workgroup",
        u64::from(x) * u64::from(y) * u64::from(z),
        limits.max_compute_invocations_per_workgroup.into(),
    )?;
    within(
        "max_compute_workgroup_storage_size",
        translated.workgroup_storage,
        limits.max_compute_workgroup_storage_size.into(),
    )?;

    let device = context.device();
    let bindings: Vec<_> = key.bindings.iter().copied().zip(translated.least).collect();
    let entries: Vec<_> = (0..)
        .zip(&bindings)
        .map(|(at, &(binding, least))| wgpu::BindGroupLayoutEntry {
            binding: at,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: binding.ty(),
                has_dynamic_offset: binding == Binding::UniformDynamic,
                min_binding_size: NonZeroU64::new(least),
            },
            count: None,
        })
        .collect();
    let constants: Vec<_> =
        key.constants.iter().map(|(name, bits)| (name.as_str(), f64::from_bits(*bits))).collect();
    let (raw, layout) = context.scoped(&format!("kernel {name}"), 0, || {
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(name),
            entries: &entries,
        });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let module = match translated.spirv {
            Some(words) => {
                let descriptor = wgpu::ShaderModuleDescriptorPassthrough {
                    label: Some(name),
                    entry_points: vec![wgpu::PassthroughShaderEntryPoint {
                        name: key.entry.as_str().into(),
                        workgroup_size: (x, y, z),
                    }]
                    .into(),
                    spirv: Some(words.into()),
                    ..Default::default()
                };
                // SAFETY: the words are naga's translation of a module that it validated against this device's
                // features, with every index and buffer access kept within bounds by the shader or, for buffers, by the
                // device, whose loops end (`Kernel`), and
                // decorations, capabilities and execution modes added that the device reports. Its bindings were
                // compared with the layout above, its sizes with the limits.
                unsafe { device.create_shader_module_passthrough(descriptor) }
            }
            None => {
                let descriptor = wgpu::ShaderModuleDescriptor {
                    label: Some(name),
                    source: wgpu::ShaderSource::Wgsl(key.source.as_str().into()),
                };
                let checks = wgpu::ShaderRuntimeChecks {
                    force_loop_bounding: bound_loops,
                    ..wgpu::ShaderRuntimeChecks::checked()
                };
                // SAFETY: all of wgpu's checks are on but the loop counter, and the loops end (`Kernel`).
                unsafe { device.create_shader_module_trusted(descriptor, checks) }
            }
        };
        let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(&key.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                // SPIR-V has them in place already.
                constants: if key.lowering.arithmetic == Arithmetic::Precise { &[] } else { &constants },
                // As in `write_spirv`.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        (raw, layout)
    })?;
    Ok(Arc::new(Pipeline {
        raw,
        layout,
        workgroup_size: translated.workgroup_size,
        name: name.to_owned(),
        bindings,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::FloatControls;

    const SOURCE: &str = "
        struct Params { zero: u32, a: f32 }
        override WIDTH: u32 = 32u;
        @group(0) @binding(0) var<uniform> params: Params;
        @group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
        @group(0) @binding(2) var<storage, read_write> y: array<f32>;
        var<workgroup> shared_sums: array<f32, 32>;
        @compute @workgroup_size(WIDTH)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            shared_sums[id.x] = 1.0;
            y[id.x] = f_fma(x[id.x].x, params.a, shared_sums[id.x]);
        }";
    const KERNEL: Kernel<'_> = Kernel {
        name: "test",
        sources: &[SOURCE],
        entry: "main",
        bindings: &[Binding::Uniform, Binding::Read, Binding::ReadWrite],
        constants: &[],
    };

    #[test]
    fn the_key_holds_all_that_changes_a_pipeline() {
        let precise = Lowering::ALL[0];
        let key = Key::new(&KERNEL, precise);
        assert_eq!(key, Key::new(&Kernel { name: "another", ..KERNEL }, precise));
        let (head, tail) = SOURCE.split_at(100);
        assert_eq!(key, Key::new(&Kernel { sources: &[head, tail], ..KERNEL }, precise));

        let mut others: Vec<Key> = Lowering::ALL[1..].iter().map(|&l| Key::new(&KERNEL, l)).collect();
        for other in [
            Kernel { sources: &[SOURCE, " "], ..KERNEL },
            Kernel { entry: "other", ..KERNEL },
            Kernel { bindings: &[Binding::UniformDynamic, Binding::Read, Binding::ReadWrite], ..KERNEL },
            Kernel { bindings: &KERNEL.bindings[..2], ..KERNEL },
            Kernel { constants: &[("WIDTH", 64.0)], ..KERNEL },
            Kernel { constants: &[("WIDTH", 0.0)], ..KERNEL },
            Kernel { constants: &[("WIDTH", -0.0)], ..KERNEL },
            Kernel { constants: &[("OTHER", 64.0)], ..KERNEL },
        ] {
            others.push(Key::new(&other, precise));
        }
        others.push(key);
        for (i, a) in others.iter().enumerate() {
            assert!(others[..i].iter().all(|b| a != b), "{i}");
        }

        let constants = |constants| Key::new(&Kernel { constants, ..KERNEL }, precise);
        assert_eq!(constants(&[("A", 1.0), ("B", 2.0)]), constants(&[("B", 2.0), ("A", 1.0)]));
    }

    #[test]
    fn translation_knows_sizes_and_constants() {
        let controls = FloatControls { denorm_preserve: true, signed_zero_inf_nan_preserve: true };
        for version in [(1, 3), (1, 5), (1, 6)] {
            for (integer_dot_product, robust_buffers) in [(false, true), (true, false)] {
                let target =
                    SpirvTarget { version, float_controls: controls, integer_dot_product, robust_buffers };
                for lowering in Lowering::ALL {
                    let kernel = Kernel { constants: &[("WIDTH", 48.0)], ..KERNEL };
                    let translated = translate(
                        "test",
                        &Key::new(&kernel, lowering),
                        wgpu::Features::empty(),
                        Some(target),
                        true,
                    )
                    .unwrap();
                    assert_eq!(translated.workgroup_size, [48, 1, 1]);
                    assert_eq!(translated.workgroup_storage, 128);
                    assert_eq!(translated.least, [8, 16, 4]);
                    assert_eq!(translated.spirv.is_some(), lowering.arithmetic == Arithmetic::Precise);
                }
            }
        }
        let default =
            translate("test", &Key::new(&KERNEL, Lowering::ALL[2]), wgpu::Features::empty(), None, true);
        assert_eq!(default.unwrap().workgroup_size, [32, 1, 1]);
        let precise =
            translate("test", &Key::new(&KERNEL, Lowering::ALL[0]), wgpu::Features::empty(), None, true);
        assert!(matches!(precise, Err(Error::Gpu { .. })));
    }
}
