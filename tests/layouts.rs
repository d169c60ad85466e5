//! What the WGSL files and the Rust that feeds them must agree on, read from naga's view of each assembled kernel.

#![cfg(feature = "wgpu")]

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use naga::{
    BinaryOperator, Expression, Function, MathFunction, Module, ScalarKind, TypeInner, UnaryOperator,
};
use samebits::gpu::{FusedMultiplyAdd, Lowering};
use samebits::quant::Format;
use samebits::stages::{ROW_TILE, STEPS_BYTES};
use samebits::stages::{expert_combine, expert_group, expert_quantize, expert_rows, expert_swiglu};
use samebits::stages::{qsa_attend, qsa_gather, qsa_merge, qsa_score, qsa_topk};
use samebits::{Step, gpu};

/// A kernel's own files, in the order in which they are put together behind the lowering's pieces.
struct Assembly {
    stem: &'static str,
    files: Vec<&'static str>,
}

/// The files of a format's rows: the order of the activations, what formats like it have in common, its own.
fn format_files(format: Format) -> &'static [&'static str] {
    const NATURAL: &str = "expert/natural.wgsl";
    const PAIRS: &str = "expert/pairs.wgsl";
    const PLAIN: &str = "expert/plain.wgsl";
    const MINIMUM: &str = "expert/minimum.wgsl";
    const REST: &str = "expert/rest.wgsl";
    const SIGNS: &str = "expert/signs.wgsl";
    match format {
        Format::Iq1M => &[NATURAL, PLAIN, REST, "quant/iq1_m.wgsl"],
        Format::Iq2Xxs => &[NATURAL, PLAIN, SIGNS, "quant/iq2_xxs.wgsl"],
        Format::Iq2Xs => &[NATURAL, PLAIN, SIGNS, "quant/iq2_xs.wgsl"],
        Format::Iq2S => &[NATURAL, PLAIN, SIGNS, "quant/iq2_s.wgsl"],
        Format::Iq3Xxs => &[NATURAL, PLAIN, SIGNS, "quant/iq3_xxs.wgsl"],
        Format::Iq3S => &[NATURAL, PLAIN, SIGNS, "quant/iq3_s.wgsl"],
        Format::Iq4Xs => &[PAIRS, PLAIN, REST, "quant/iq4_xs.wgsl"],
        Format::Iq4Nl => &[PAIRS, "quant/iq4_nl.wgsl"],
        Format::Q2_0 => &["expert/quarters.wgsl", "quant/q2_0.wgsl"],
        Format::Q4K => &[NATURAL, MINIMUM, REST, "quant/q4_k.wgsl"],
        Format::Q5K => &[NATURAL, MINIMUM, REST, "quant/q5_k.wgsl"],
        Format::Q6K => &[NATURAL, PLAIN, REST, "quant/q6_k.wgsl"],
        Format::Q5_1 => &[NATURAL, MINIMUM, REST, "quant/q5_1.wgsl"],
        Format::Q8_0 => &[NATURAL, PLAIN, REST, "quant/q8_0.wgsl"],
    }
}

/// Every kernel in every variant. That the lists are those of the host code is a test below.
fn assemblies() -> &'static [Assembly] {
    static ASSEMBLIES: OnceLock<Vec<Assembly>> = OnceLock::new();
    ASSEMBLIES.get_or_init(|| {
        let mut all = Vec::new();
        let mut add = |stem, files: &[&'static str]| all.push(Assembly { stem, files: files.to_vec() });
        add("probe", &["exact/f16.wgsl", "exact/math.wgsl", "exact/lane.wgsl", "exact/probe.wgsl"]);
        for score in ["score/unrolled.wgsl", "score/looped.wgsl"] {
            add("qsa_score", &["exact/lane.wgsl", "exact/math.wgsl", "qsa_score.wgsl", score]);
        }
        add("qsa_topk", &["exact/math.wgsl", "qsa_topk.wgsl"]);
        add("qsa_gather", &["qsa_gather.wgsl"]);
        for kv in ["kv/f16.wgsl", "kv/int8.wgsl"] {
            let files = ["exact/lane.wgsl", "exact/math.wgsl", "exact/f16.wgsl", kv, "qsa_attend.wgsl"];
            add("qsa_attend", &files);
        }
        add("qsa_merge", &["exact/math.wgsl", "exact/f16.wgsl", "qsa_merge.wgsl"]);
        add("expert_group", &["expert_group.wgsl"]);
        for (stem, own) in
            [("expert_quantize", "expert_quantize.wgsl"), ("expert_swiglu", "expert_swiglu.wgsl")]
        {
            add(stem, &["exact/math.wgsl", "exact/f16.wgsl", "expert/q8_1.wgsl", own]);
        }
        for (stem, own) in [("expert_gate_up", "expert_gate_up.wgsl"), ("expert_down", "expert_down.wgsl")] {
            for format in Format::ALL {
                let mut files = vec!["exact/math.wgsl", "exact/f16.wgsl"];
                files.extend(format_files(format));
                files.extend(["expert/rows.wgsl", own]);
                add(stem, &files);
            }
        }
        add("expert_combine", &["expert_combine.wgsl"]);
        all
    })
}

/// The Rust files that name a kernel's WGSL.
fn hosts(stem: &str) -> Vec<PathBuf> {
    let stage = |name: &str| root().join(format!("src/stages/{name}.rs"));
    match stem {
        "probe" => vec![root().join("src/gpu/probe.rs")],
        "expert_gate_up" | "expert_down" => vec![stage(stem), stage("expert_rows")],
        _ => vec![stage(stem)],
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All WGSL files, relative to `wgsl`.
fn wgsl_files() -> BTreeSet<String> {
    fn walk(dir: &Path, base: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, base, found);
            } else {
                let relative = path.strip_prefix(base).unwrap();
                assert_eq!(path.extension().unwrap(), "wgsl", "{}", path.display());
                found.insert(relative.to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    let (base, mut found) = (root().join("wgsl"), BTreeSet::new());
    walk(&base, &base, &mut found);
    found
}

struct Kernel {
    what: String,
    stem: &'static str,
    module: Module,
    info: naga::valid::ModuleInfo,
}

fn parse(what: &str, source: &str) -> (Module, naga::valid::ModuleInfo) {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|e| panic!("{}", e.emit_to_string_with_path(source, what)));
    let info = naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        // What pack2x16float needs, so that the walker's own test gets to see it.
        naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32,
    )
    .validate(&module)
    .unwrap_or_else(|e| panic!("{}", e.emit_to_string_with_path(source, what)));
    (module, info)
}

/// Every kernel under every lowering. Validated without optional capabilities: WGSL's core is all that is used.
fn kernels() -> &'static [Kernel] {
    static KERNELS: OnceLock<Vec<Kernel>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let mut kernels = Vec::new();
        for lowering in Lowering::ALL {
            for assembly in assemblies() {
                let mut source = lowering.pieces().concat();
                for file in &assembly.files {
                    source += &read(&root().join("wgsl").join(file));
                }
                let what = format!("{} under {lowering}", assembly.files.join(" + "));
                let (module, info) = parse(&what, &source);
                kernels.push(Kernel { what, stem: assembly.stem, module, info });
            }
        }
        kernels
    })
}

/// Name, offset, size and type of each field.
type Fields = Vec<(&'static str, usize, usize, &'static str)>;

fn field<T, F>(
    name: &'static str,
    offset: usize,
    _: fn(&T) -> &F,
) -> (&'static str, usize, usize, &'static str) {
    (name, offset, size_of::<F>(), std::any::type_name::<F>())
}

/// A struct's size and fields. The pattern keeps the list complete: a field that is left out does not compile.
macro_rules! layout {
    ($ty:path { $($name:ident),* }) => {{
        #[allow(dead_code, reason = "exists to be compiled")]
        fn complete(x: $ty) {
            let $ty { $($name: _),* } = x;
        }
        let fields: Fields =
            vec![$(field(stringify!($name), offset_of!($ty, $name), |x: &$ty| &x.$name)),*];
        (size_of::<$ty>(), fields)
    }};
}

fn step() -> (usize, Fields) {
    layout!(Step { pos, n_kv, n_bid, width })
}

fn params() -> BTreeMap<&'static str, (usize, Fields)> {
    BTreeMap::from([
        (
            "qsa_score",
            layout!(qsa_score::ScoreParams {
                zero,
                first,
                dead,
                columns,
                stride,
                score_stride,
                heads,
                halves
            }),
        ),
        (
            "qsa_topk",
            layout!(qsa_topk::TopkParams {
                zero,
                level,
                last,
                items,
                part,
                part_in,
                part_out,
                src_stride,
                dst_stride,
                level0_part,
                level1_part,
                max_width
            }),
        ),
        (
            "qsa_gather",
            layout!(qsa_gather::GatherParams {
                zero,
                page_size,
                id_stride,
                words,
                first_slot,
                slots,
                slice,
                spare
            }),
        ),
        (
            "qsa_attend",
            layout!(qsa_attend::AttendParams {
                zero,
                group,
                kv_heads,
                tiles,
                page_size,
                slots,
                id_stride,
                partial_stride,
                gathered,
                scale,
                spare0,
                spare1
            }),
        ),
        (
            "qsa_merge",
            layout!(qsa_merge::MergeParams {
                zero,
                q_heads,
                partial_stride,
                gated,
                half_out,
                max_chunks,
                spare0,
                spare1
            }),
        ),
        (
            "expert_group",
            layout!(expert_group::GroupParams {
                zero,
                entries,
                experts,
                per_group,
                max_groups,
                spare0,
                spare1,
                spare2
            }),
        ),
        ("expert_quantize", layout!(expert_quantize::QuantizeParams { zero, blocks, spare0, spare1 })),
        ("expert_gate_up", rows()),
        ("expert_swiglu", layout!(expert_swiglu::SwigluParams { zero, blocks, row_blocks, spare })),
        ("expert_down", rows()),
        (
            "expert_combine",
            layout!(expert_combine::CombineParams {
                zero,
                used,
                experts,
                n_embd,
                has_shared,
                tokens,
                spare0,
                spare1
            }),
        ),
    ])
}

fn rows() -> (usize, Fields) {
    layout!(expert_rows::RowsParams {
        zero,
        first_slot,
        slots,
        first_row,
        out_stride,
        per_token,
        entries,
        max_groups
    })
}

/// The difference between a WGSL struct and a Rust one.
fn difference(module: &Module, name: &str, (size, fields): &(usize, Fields)) -> Option<String> {
    let Some((_, ty)) = module.types.iter().find(|(_, ty)| ty.name.as_deref() == Some(name)) else {
        return Some(format!("no struct {name}"));
    };
    let TypeInner::Struct { members, span } = &ty.inner else { return Some(format!("{name} is no struct")) };
    let wgsl: Vec<_> = members
        .iter()
        .map(|m| {
            let inner = &module.types[m.ty].inner;
            let scalar = match inner.scalar_kind() {
                Some(ScalarKind::Float) => "f32",
                Some(ScalarKind::Uint) => "u32",
                Some(ScalarKind::Sint) => "i32",
                _ => "?",
            };
            (m.name.as_deref().unwrap_or(""), m.offset as usize, inner.size(module.to_ctx()) as usize, scalar)
        })
        .collect();
    if wgsl != *fields {
        return Some(format!("{name}: WGSL has {wgsl:?}, Rust has {fields:?}"));
    }
    (*span as usize != *size).then(|| format!("{name}: WGSL has {span} bytes, Rust has {size}"))
}

#[test]
fn structs_have_the_same_layout() {
    let params = params();
    for kernel in kernels() {
        let what = &kernel.what;
        if kernel.stem == "probe" {
            // Its parameters are private to the probe, which checks itself by its results.
            continue;
        }
        let expected = &params[kernel.stem];
        assert_eq!(difference(&kernel.module, "Params", expected), None, "{what}");
        if !kernel.stem.starts_with("qsa_") {
            continue;
        }
        assert_eq!(difference(&kernel.module, "Step", &step()), None, "{what}");
        let (_, steps) = kernel
            .module
            .global_variables
            .iter()
            .find(|(_, v)| v.name.as_deref() == Some("steps"))
            .expect("every stage reads step records");
        let inner = &kernel.module.types[steps.ty].inner;
        assert_eq!(u64::from(inner.size(kernel.module.to_ctx())), STEPS_BYTES, "{what}");
        assert_eq!(STEPS_BYTES, u64::from(ROW_TILE) * step().0 as u64);
    }
}

#[test]
fn a_difference_in_layout_is_seen() {
    let module = |text: &str| naga::front::wgsl::parse_str(text).unwrap();
    let same = "struct Step { pos: u32, n_kv: u32, n_bid: u32, width: u32 }";
    assert_eq!(difference(&module(same), "Step", &step()), None);
    for other in [
        "struct Step { pos: u32, n_bid: u32, n_kv: u32, width: u32 }",
        "struct Step { pos: u32, n_kv: u32, n_bid: u32, width: f32 }",
        "struct Step { pos: u32, n_kv: u32, n_bid: u32 }",
        "struct Step { pos: u32, n_kv: u32, n_bid: u32, width: u32, more: u32 }",
        "struct Step { pos: u32, n_kv: u32, n_bid: u32, @size(8) width: u32 }",
        "struct Other { pos: u32 }",
    ] {
        assert!(difference(&module(other), "Step", &step()).is_some(), "{other}");
    }
}

/// The files of a kernel are those that its host code names, and no file of `wgsl` is left out.
#[test]
fn every_file_is_covered() {
    let mut covered = BTreeSet::new();
    let stems: BTreeSet<&str> = assemblies().iter().map(|a| a.stem).collect();
    for stem in stems {
        let variants = assemblies().iter().filter(|a| a.stem == stem);
        let listed: BTreeSet<&str> = variants.flat_map(|a| &a.files).copied().collect();
        let text: String = hosts(stem).iter().map(|host| read(host)).collect();
        let named: BTreeSet<&str> = text
            .split("include_str!(\"../../wgsl/")
            .skip(1)
            .map(|rest| rest.split_once('"').expect("a closed string").0)
            .collect();
        assert_eq!(listed, named, "{stem}");
        covered.extend(listed.into_iter().map(str::to_owned));
    }
    // The pieces of the lowerings, by their text.
    let pieces: BTreeSet<&str> = Lowering::ALL.iter().flat_map(|l| l.pieces()).collect();
    for file in wgsl_files() {
        if pieces.contains(read(&root().join("wgsl").join(&file)).as_str()) {
            covered.insert(file);
        }
    }
    assert_eq!(wgsl_files(), covered);
}

/// The comment that a file begins with.
fn head(text: &str) -> String {
    text.lines().take_while(|l| l.starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// A stage's file says what it works on, what is bound where, and in which order it adds.
#[test]
fn heads_say_shapes_bindings_and_order() {
    let bindings = |stem: &str| -> BTreeSet<u32> {
        kernels()
            .iter()
            .filter(|k| k.stem == stem)
            .flat_map(|k| k.module.global_variables.iter().filter_map(|(_, v)| v.binding.map(|b| b.binding)))
            .collect()
    };
    for file in wgsl_files() {
        let text = read(&root().join("wgsl").join(&file));
        let head = head(&text);
        assert!(!head.is_empty(), "{file} begins with a comment");
        let Some(stem) = file.strip_suffix(".wgsl").filter(|s| !s.contains('/')) else { continue };
        assert!(head.contains("Shapes: "), "{file}: shapes");
        assert!(head.contains("rder: "), "{file}: the order of sums");
        for binding in bindings(stem) {
            let listed = head.contains(&format!("binding {binding}"))
                || (stem == "probe" && head.contains(&binding.to_string()));
            assert!(listed, "{file}: binding {binding}");
        }
    }
}

/// Functions that a lowering's pieces define: the only ones with float arithmetic in them.
fn prelude(lowering: Lowering) -> BTreeSet<String> {
    // The guarded pieces read the kernel's parameters.
    let params = "struct Params { zero: u32 } @group(0) @binding(0) var<uniform> params: Params;";
    let source = lowering.pieces().concat() + params;
    let (module, _) = parse("pieces", &source);
    module.functions.iter().filter_map(|(_, f)| f.name.clone()).collect()
}

/// What in a function is not allowed. `arithmetic`: it belongs to the lowering.
fn forbidden(
    module: &Module,
    f: &Function,
    info: &naga::valid::FunctionInfo,
    arithmetic: bool,
) -> Vec<String> {
    let kind = |e: naga::Handle<Expression>| info[e].ty.inner_with(&module.types).scalar_kind();
    let float =
        |e: naga::Handle<Expression>| matches!(kind(e), Some(ScalarKind::Float | ScalarKind::AbstractFloat));
    let mut found = Vec::new();
    for (_, expression) in f.expressions.iter() {
        let bad = match expression {
            Expression::Math { fun, arg, .. } => match fun {
                // Bits in, bits out.
                MathFunction::CountLeadingZeros
                | MathFunction::CountTrailingZeros
                | MathFunction::CountOneBits
                | MathFunction::FirstLeadingBit
                | MathFunction::FirstTrailingBit
                | MathFunction::ReverseBits
                | MathFunction::ExtractBits
                | MathFunction::InsertBits
                | MathFunction::Dot4I8Packed
                | MathFunction::Dot4U8Packed => false,
                MathFunction::Min | MathFunction::Max | MathFunction::Clamp | MathFunction::Abs => {
                    float(*arg)
                }
                MathFunction::Fma => !arithmetic,
                _ => true,
            },
            Expression::Binary { op, left, right } if float(*left) || float(*right) => match op {
                BinaryOperator::Add | BinaryOperator::Subtract | BinaryOperator::Multiply => !arithmetic,
                BinaryOperator::Divide | BinaryOperator::Modulo => true,
                _ => false,
            },
            // A compiler may move a minus through an operation; the bit is flipped instead.
            Expression::Unary { op: UnaryOperator::Negate, expr } => float(*expr),
            // Conversions go between 32-bit numbers; binary16 is integer code.
            Expression::As { kind: ScalarKind::Float, convert: Some(width), .. } => *width != 4,
            Expression::Relational { fun, .. } => {
                matches!(fun, naga::RelationalFunction::IsNan | naga::RelationalFunction::IsInf)
            }
            Expression::Derivative { .. } => true,
            Expression::SubgroupOperationResult { .. } => true,
            _ => false,
        };
        if bad {
            found.push(format!("{}: {expression:?}", f.name.as_deref().unwrap_or("entry point")));
        }
    }
    found
}

fn all_forbidden(module: &Module, info: &naga::valid::ModuleInfo, prelude: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (handle, f) in module.functions.iter() {
        let arithmetic = f.name.as_ref().is_some_and(|n| prelude.contains(n));
        found.extend(forbidden(module, f, &info[handle], arithmetic));
    }
    for (i, entry) in module.entry_points.iter().enumerate() {
        found.extend(forbidden(module, &entry.function, info.get_entry_point(i), false));
    }
    found
}

/// Float arithmetic goes through the lowering's functions alone, and no built-in function of floats is used.
#[test]
fn no_kernel_uses_what_drivers_round_as_they_like() {
    for (i, kernel) in kernels().iter().enumerate() {
        let lowering = Lowering::ALL[i / assemblies().len()];
        let prelude = prelude(lowering);
        for name in ["f_add", "f_sub", "f_mul", "f_fma", "v_add", "v_mul", "v_fma"] {
            assert!(prelude.contains(name), "{lowering} defines {name}");
        }
        let found = all_forbidden(&kernel.module, &kernel.info, &prelude);
        assert!(found.is_empty(), "{}: {found:#?}", kernel.what);
        // The emulation itself must not lean on the built-in.
        if lowering.fma == FusedMultiplyAdd::Soft {
            let uses_fma = |f: &Function| {
                f.expressions
                    .iter()
                    .any(|(_, e)| matches!(e, Expression::Math { fun: MathFunction::Fma, .. }))
            };
            assert!(!kernel.module.functions.iter().any(|(_, f)| uses_fma(f)), "{}", kernel.what);
        }
    }
    assert_eq!(gpu::Lowering::ALL.len() * assemblies().len(), kernels().len());
}

#[test]
fn forbidden_operations_are_seen() {
    let check = |body: &str| {
        let source = format!(
            "@group(0) @binding(0) var<storage, read_write> x: array<f32>;
            fn f_add(a: f32, b: f32) -> f32 {{ return a + b; }}
            @compute @workgroup_size(1) fn main() {{ {body} }}"
        );
        let (module, info) = parse(body, &source);
        all_forbidden(&module, &info, &BTreeSet::from(["f_add".to_owned()]))
    };
    for body in [
        "x[0] = exp(x[1]);",
        "x[0] = sqrt(x[1]);",
        "x[0] = inverseSqrt(x[1]);",
        "x[0] = bitcast<f32>(pack2x16float(vec2<f32>(x[1])));",
        "x[0] = unpack2x16float(bitcast<u32>(x[1])).x;",
        "x[0] = dot(vec2<f32>(x[1]), vec2<f32>(x[2]));",
        "x[0] = x[1] / x[2];",
        "x[0] = (vec4<f32>(x[1]) / vec4<f32>(x[2])).x;",
        "x[0] /= x[1];",
        "x[0] = x[1] % x[2];",
        "x[0] = x[1] + x[2];",
        "x[0] -= x[2];",
        "x[0] = x[1] * 2.0;",
        "x[0] = -x[1];",
        "x[0] = fma(x[1], x[2], x[3]);",
        "x[0] = max(x[1], x[2]);",
        "x[0] = abs(x[1]);",
        "x[0] = mix(x[1], x[2], x[3]);",
        "x[0] = pow(x[1], x[2]);",
    ] {
        assert!(!check(body).is_empty(), "{body}");
    }
    for body in [
        "x[0] = f_add(x[1], x[2]);",
        "x[0] = f32(bitcast<u32>(x[1]) / 7u % 3u);",
        "x[0] = select(x[1], x[2], x[1] > x[2]);",
        "x[0] = f32(max(bitcast<i32>(x[1]), -3));",
    ] {
        assert!(check(body).is_empty(), "{body}: {:?}", check(body));
    }
}
