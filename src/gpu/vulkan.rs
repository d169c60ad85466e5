//! What wgpu does not say about a Vulkan device and SPIR-V needs to know.

use super::spirv::FloatControls;

/// What a SPIR-V module for a device may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpirvTarget {
    /// SPIR-V version, major and minor.
    pub version: (u8, u8),
    /// Float behaviour that a module may ask for.
    pub float_controls: FloatControls,
    /// Whether integer dot product instructions are available; without them they are spelled out.
    pub integer_dot_product: bool,
    /// Whether the device itself keeps every access within its binding (`robustBufferAccess2`).
    pub robust_buffers: bool,
}

impl SpirvTarget {
    /// Asks the physical device under `device`. `None` when that is not a Vulkan device of at least version 1.1.
    #[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
    pub fn of(device: &wgpu::Device) -> Option<SpirvTarget> {
        use ash::vk;

        // SAFETY: the handle is only read from, nothing is destroyed, and the guard lives to the end of the function.
        let hal = unsafe { device.as_hal::<wgpu::hal::api::Vulkan>() }?;
        let shared = hal.shared_instance();
        let instance = shared.raw_instance();
        let physical = hal.raw_physical_device();
        let enabled = |name: &std::ffi::CStr| hal.enabled_device_extensions().contains(&name);

        // SAFETY: `physical` belongs to `instance`, and both outlive the call through the guard.
        let api = unsafe { instance.get_physical_device_properties(physical) }.api_version;
        // The functions with a 2 in their name need an instance of version 1.1.
        if api < vk::API_VERSION_1_1 || shared.instance_api_version() < vk::API_VERSION_1_1 {
            return None;
        }

        // The capabilities are legal when the extension is part of the device's version, or was enabled on it.
        let mut controls = vk::PhysicalDeviceFloatControlsProperties::default();
        if api >= vk::API_VERSION_1_2 || enabled(ash::khr::shader_float_controls::NAME) {
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut controls);
            // SAFETY: as above; the chain holds one structure that the device knows by its version or extension.
            unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
        }
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
        if api >= vk::API_VERSION_1_3 || enabled(ash::khr::shader_integer_dot_product::NAME) {
            let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut dot);
            // SAFETY: as above. wgpu enables this feature wherever the physical device has it.
            unsafe { instance.get_physical_device_features2(physical, &mut features) };
        }

        let mut robustness = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
        if enabled(ash::ext::robustness2::NAME) {
            let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut robustness);
            // SAFETY: as above. wgpu enables this feature wherever the physical device has it.
            unsafe { instance.get_physical_device_features2(physical, &mut features) };
        }

        Some(SpirvTarget {
            // The newest version that each Vulkan version must accept, as wgpu picks it.
            version: match api {
                vk::API_VERSION_1_3.. => (1, 6),
                vk::API_VERSION_1_2.. => (1, 5),
                _ => (1, 3),
            },
            float_controls: FloatControls {
                denorm_preserve: controls.shader_denorm_preserve_float32 == vk::TRUE,
                signed_zero_inf_nan_preserve: controls.shader_signed_zero_inf_nan_preserve_float32
                    == vk::TRUE,
            },
            integer_dot_product: dot.shader_integer_dot_product == vk::TRUE,
            robust_buffers: robustness.robust_buffer_access2 == vk::TRUE,
        })
    }

    /// There is no Vulkan on this platform.
    #[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
    pub fn of(_device: &wgpu::Device) -> Option<SpirvTarget> {
        None
    }
}
