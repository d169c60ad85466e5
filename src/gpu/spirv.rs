//! Makes a SPIR-V module's float arithmetic literal.
//!
//! naga emits neither `NoContraction` nor float controls, and Vulkan lets a driver fuse, factor and simplify float
//! expressions that carry no such mark. This pass adds the marks and leaves every existing instruction alone.

use crate::error::{Error, Result};

/// Float behaviour of a device at 32 bits, as `VkPhysicalDeviceFloatControlsProperties` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FloatControls {
    /// Subnormal operands and results can be kept.
    pub denorm_preserve: bool,
    /// Signed zeros, infinities and NaN can be kept.
    pub signed_zero_inf_nan_preserve: bool,
}

const MAGIC: u32 = 0x0723_0203;
const HEADER: usize = 5;
/// SPIR-V 1.4 brought the float controls into the core; before it they are an extension.
const VERSION_1_4: u32 = 0x0001_0400;

mod op {
    pub const EXTENSION: u32 = 10;
    pub const EXT_INST: u32 = 12;
    pub const ENTRY_POINT: u32 = 15;
    pub const EXECUTION_MODE: u32 = 16;
    pub const CAPABILITY: u32 = 17;
    pub const TYPE_VOID: u32 = 19;
    pub const TYPE_FLOAT: u32 = 22;
    pub const TYPE_VECTOR: u32 = 23;
    pub const TYPE_MATRIX: u32 = 24;
    pub const TYPE_FORWARD_POINTER: u32 = 39;
    pub const DECORATE: u32 = 71;
    pub const GROUP_MEMBER_DECORATE: u32 = 75;
}

const NO_CONTRACTION: u32 = 42;
const CAPABILITY_DENORM_PRESERVE: u32 = 4464;
const CAPABILITY_SIGNED_ZERO_INF_NAN_PRESERVE: u32 = 4466;
const MODE_DENORM_PRESERVE: u32 = 4459;
const MODE_SIGNED_ZERO_INF_NAN_PRESERVE: u32 = 4461;

/// Whether the instruction is float arithmetic by its opcode alone: OpFNegate, OpFAdd, OpFSub, OpFMul, OpFDiv, OpFRem,
/// OpFMod, OpVectorTimesScalar to OpOuterProduct, OpDot.
fn is_float_arithmetic(opcode: u32) -> bool {
    matches!(opcode, 127 | 129 | 131 | 133 | 136 | 140 | 141 | 142..=148)
}

struct Instruction {
    at: usize,
    opcode: u32,
    len: usize,
}

fn broken(reason: String) -> Error {
    Error::Gpu { what: "reading SPIR-V".into(), reason }
}

fn instructions(words: &[u32]) -> Result<Vec<Instruction>> {
    if words.len() < HEADER || words[0] != MAGIC {
        return Err(broken("no SPIR-V header".into()));
    }
    let mut all = Vec::new();
    let mut at = HEADER;
    while at < words.len() {
        let (opcode, len) = (words[at] & 0xffff, (words[at] >> 16) as usize);
        // The fields read below: result type and id of an ExtInst, the id of an entry point.
        let least = match opcode {
            op::EXT_INST => 5,
            op::ENTRY_POINT | op::TYPE_VECTOR | op::TYPE_MATRIX => 4,
            op::TYPE_FLOAT => 3,
            opcode if is_float_arithmetic(opcode) => 4,
            _ => 1,
        };
        if len < least || at + len > words.len() {
            return Err(broken(format!("instruction {opcode} at word {at} has {len} words")));
        }
        all.push(Instruction { at, opcode, len });
        at += len;
    }
    Ok(all)
}

/// The ids of all float arithmetic results.
fn float_results(words: &[u32], all: &[Instruction]) -> Vec<u32> {
    // Extended instructions are decorated by their result type: `fma` is float, `findMSB` is not.
    let mut floats = Vec::new();
    let mut ids = Vec::new();
    for i in all {
        match i.opcode {
            op::TYPE_FLOAT => floats.push(words[i.at + 1]),
            op::TYPE_VECTOR | op::TYPE_MATRIX if floats.contains(&words[i.at + 2]) => {
                floats.push(words[i.at + 1]);
            }
            op::EXT_INST if floats.contains(&words[i.at + 1]) => ids.push(words[i.at + 2]),
            opcode if is_float_arithmetic(opcode) => ids.push(words[i.at + 2]),
            _ => {}
        }
    }
    ids
}

/// Adds `NoContraction` to every float arithmetic result and the float controls that the device has to every entry
/// point.
///
/// # Errors
/// [`Error::Gpu`] when the words are not a SPIR-V module.
pub fn make_precise(words: &[u32], controls: FloatControls) -> Result<Vec<u32>> {
    let all = instructions(words)?;
    let ids = float_results(words, &all);

    let mut capabilities = Vec::new();
    let mut modes = Vec::new();
    if controls.denorm_preserve {
        capabilities.push(CAPABILITY_DENORM_PRESERVE);
        modes.push(MODE_DENORM_PRESERVE);
    }
    if controls.signed_zero_inf_nan_preserve {
        capabilities.push(CAPABILITY_SIGNED_ZERO_INF_NAN_PRESERVE);
        modes.push(MODE_SIGNED_ZERO_INF_NAN_PRESERVE);
    }
    let extension = !capabilities.is_empty() && words[1] < VERSION_1_4;

    // SPIR-V fixes the order of a module's sections: capabilities, extensions, imports, memory model, entry points,
    // execution modes, debug, annotations, types. Each addition goes to the end of its own section.
    let end_of = |wanted: &dyn Fn(u32) -> bool| {
        all.iter().rfind(|i| wanted(i.opcode)).map_or(HEADER, |i| i.at + i.len)
    };
    let capabilities_at = end_of(&|o| o == op::CAPABILITY);
    let extensions_at = end_of(&|o| o == op::CAPABILITY || o == op::EXTENSION);
    let modes_at = end_of(&|o| o == op::ENTRY_POINT || o == op::EXECUTION_MODE);
    let decorations_at = all
        .iter()
        .find(|i| {
            (op::DECORATE..=op::GROUP_MEMBER_DECORATE).contains(&i.opcode)
                || (op::TYPE_VOID..=op::TYPE_FORWARD_POINTER).contains(&i.opcode)
        })
        .map_or(words.len(), |i| i.at);
    if ![capabilities_at, extensions_at, modes_at, decorations_at].is_sorted() {
        return Err(broken("its sections are incomplete or out of order".into()));
    }

    let mut out = Vec::with_capacity(words.len() + 3 * ids.len() + 32);
    let mut copied = 0;
    let mut copy_up_to = |out: &mut Vec<u32>, at: usize| {
        out.extend_from_slice(&words[copied..at]);
        copied = at;
    };
    copy_up_to(&mut out, capabilities_at);
    for capability in capabilities {
        out.extend([instruction(op::CAPABILITY, 2), capability]);
    }
    copy_up_to(&mut out, extensions_at);
    if extension {
        let name = string_words("SPV_KHR_float_controls");
        out.push(instruction(op::EXTENSION, 1 + name.len() as u32));
        out.extend(name);
    }
    copy_up_to(&mut out, modes_at);
    for entry in all.iter().filter(|i| i.opcode == op::ENTRY_POINT) {
        for &mode in &modes {
            out.extend([instruction(op::EXECUTION_MODE, 4), words[entry.at + 2], mode, 32]);
        }
    }
    copy_up_to(&mut out, decorations_at);
    for id in ids {
        out.extend([instruction(op::DECORATE, 3), id, NO_CONTRACTION]);
    }
    copy_up_to(&mut out, words.len());
    Ok(out)
}

fn instruction(opcode: u32, words: u32) -> u32 {
    words << 16 | opcode
}

/// A literal string: UTF-8, a zero byte, padded with zeros to whole words, first byte lowest.
fn string_words(text: &str) -> Vec<u32> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len() / 4 * 4 + 4, 0);
    bytes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: FloatControls = FloatControls { denorm_preserve: true, signed_zero_inf_nan_preserve: true };

    fn naga_words(lang_version: (u8, u8), source: &str) -> Vec<u32> {
        let module = naga::front::wgsl::parse_str(source).unwrap();
        let info = naga::valid::Validator::new(
            naga::valid::ValidationFlags::all(),
            naga::valid::Capabilities::empty(),
        )
        .validate(&module)
        .unwrap();
        let options = naga::back::spv::Options { lang_version, ..Default::default() };
        naga::back::spv::write_vec(&module, &info, &options, None).unwrap()
    }

    const SOURCE: &str = "
        @group(0) @binding(0) var<storage, read_write> o: array<vec4<f32>>;
        @group(0) @binding(1) var<storage, read_write> u: array<u32>;
        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) g: vec3<u32>) {
            let x = o[g.x];
            let y = o[g.x + 1u];
            var r = x + y;
            r = r - x * y;
            r = r / x;
            r = -r;
            r = r * x.x;
            r.y = fma(x.x, y.x, x.y);
            r = fma(r, x, y);
            r.z = dot(x, y);
            o[g.x] = r;
            u[g.x] = countLeadingZeros(u[g.x]) * 3u + u[0];
        }";

    /// What a module says about itself, read independently of the pass.
    struct Read {
        decorated: Vec<u32>,
        arithmetic: Vec<(u32, u32)>,
        order: Vec<u32>,
        modes: Vec<Vec<u32>>,
        capabilities: Vec<u32>,
        entry: u32,
    }

    fn read(words: &[u32]) -> Read {
        let mut r = Read {
            decorated: vec![],
            arithmetic: vec![],
            order: vec![],
            modes: vec![],
            capabilities: vec![],
            entry: 0,
        };
        let mut at = 5;
        while at < words.len() {
            let (opcode, len) = (words[at] & 0xffff, (words[at] >> 16) as usize);
            let operands = &words[at + 1..at + len];
            r.order.push(opcode);
            match opcode {
                15 => r.entry = operands[1],
                16 => r.modes.push(operands.to_vec()),
                17 => r.capabilities.push(operands[0]),
                71 if operands[1] == 42 => r.decorated.push(operands[0]),
                // GLSL.std.450: 50 is Fma, 73 and 75 find bits.
                12 if operands[3] == 50 => r.arithmetic.push((12, operands[1])),
                127 | 129 | 131 | 133 | 136 | 142 | 148 => r.arithmetic.push((opcode, operands[1])),
                _ => {}
            }
            at += len;
        }
        assert_eq!(at, words.len());
        r
    }

    /// The section of a module that an instruction belongs to.
    fn section(opcode: u32) -> Option<u32> {
        Some(match opcode {
            17 => 0,
            10 => 1,
            11 => 2,
            14 => 3,
            15 => 4,
            16 => 5,
            3..=7 => 6,
            71..=75 => 7,
            19..=39 => 8,
            54 => 9,
            _ => return None,
        })
    }

    #[test]
    fn every_float_result_is_marked_and_nothing_else() {
        for version in [(1, 0), (1, 3), (1, 5), (1, 6)] {
            let before = naga_words(version, SOURCE);
            assert!(read(&before).decorated.is_empty(), "naga marks by itself: the pass may be superfluous");
            let after = make_precise(&before, BOTH).unwrap();
            let r = read(&after);
            for opcode in [12, 127, 129, 131, 133, 136, 142, 148] {
                assert!(r.arithmetic.iter().any(|a| a.0 == opcode), "the source has no {opcode}");
            }
            let mut ids: Vec<u32> = r.arithmetic.iter().map(|a| a.1).collect();
            let mut decorated = r.decorated.clone();
            ids.sort_unstable();
            decorated.sort_unstable();
            assert_eq!(ids, decorated);
        }
    }

    #[test]
    fn sections_stay_in_order_and_the_header_unchanged() {
        for version in [(1, 0), (1, 3), (1, 6)] {
            let before = naga_words(version, SOURCE);
            let after = make_precise(&before, BOTH).unwrap();
            assert_eq!(before[..5], after[..5]);
            let r = read(&after);
            let sections: Vec<u32> = r.order.iter().filter_map(|&o| section(o)).collect();
            // Functions hold instructions of other sections' numbers (none here before OpFunction = 54).
            let head: Vec<u32> = sections.iter().copied().take_while(|&s| s != 9).collect();
            assert!(head.is_sorted(), "{version:?}: {head:?}");
            assert_eq!(r.capabilities.iter().filter(|&&c| c == 4464 || c == 4466).count(), 2);
            assert!(r.modes.contains(&vec![r.entry, 4459, 32]));
            assert!(r.modes.contains(&vec![r.entry, 4461, 32]));
            // Taking the additions out again gives the module as it was.
            let mut rest = after[..5].to_vec();
            for i in instructions(&after).unwrap() {
                let words = &after[i.at..i.at + i.len];
                let added = match i.opcode {
                    71 => words[2] == 42,
                    17 => words[1] == 4464 || words[1] == 4466,
                    16 => words[2] == 4459 || words[2] == 4461,
                    10 => words[1..] == string_words("SPV_KHR_float_controls"),
                    _ => false,
                };
                if !added {
                    rest.extend_from_slice(words);
                }
            }
            assert_eq!(rest, before);
        }
    }

    #[test]
    fn the_extension_is_named_only_before_1_4() {
        let name = string_words("SPV_KHR_float_controls");
        let names = |version, controls| {
            let words = make_precise(&naga_words(version, SOURCE), controls).unwrap();
            words.windows(name.len()).filter(|w| *w == name).count()
        };
        assert_eq!(names((1, 3), BOTH), 1);
        assert_eq!(names((1, 6), BOTH), 0);
        assert_eq!(names((1, 3), FloatControls::default()), 0);
    }

    #[test]
    fn no_controls_no_modes() {
        let before = naga_words((1, 3), SOURCE);
        let r = read(&make_precise(&before, FloatControls::default()).unwrap());
        assert!(!r.capabilities.iter().any(|c| (4464..=4468).contains(c)));
        assert!(!r.decorated.is_empty());
    }

    #[test]
    fn strings_end_in_zero() {
        assert_eq!(string_words("abc"), [0x0063_6261]);
        assert_eq!(string_words("abcd"), [0x6463_6261, 0]);
    }

    #[test]
    fn nonsense_is_an_error() {
        let good = naga_words((1, 3), SOURCE);
        // In the middle of the first instruction.
        let cut = good[..6].to_vec();
        let mut zero = good.clone();
        zero[5] = 0;
        for words in [&[][..], &[1, 2, 3, 4, 5, 6], &cut, &zero] {
            assert!(matches!(make_precise(words, BOTH), Err(Error::Gpu { .. })));
        }
        // Every truncation and many single-word changes: an error or a module, never a panic.
        for n in 0..good.len() {
            let _ = make_precise(&good[..n], BOTH);
            let mut words = good.clone();
            words[n] ^= 0x0001_0000;
            let _ = make_precise(&words, BOTH);
        }
    }
}
