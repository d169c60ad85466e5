//! The shared arithmetic against independent definitions, on the CPU.
//!
//! The default run takes every input class and a sample; `cargo test --release --test exact -- --ignored` walks all
//! 2^32 inputs of the one-argument functions and the long random runs, and prints the largest error of each.
//!
//! How errors are measured. Reference values are f64: for `rsqrt` from IEEE square root and division, two correctly
//! rounded steps; for `exp` and `sigmoid` from the platform's `exp`, which is good to a few units of 2^-53. An ulp of
//! a normal binary32 result is at least 2^-24 of its value, so the reference is off by less than 2^-26 ulp, and a
//! measured error of `x` shows a true error below `x + 2^-26`. The bounds asserted leave more room than that.

use rayon::prelude::*;
use samebits::exact::*;

/// splitmix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn bits(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }
}

/// Values at which something changes: both signs of zero, limits, subnormals, infinities, NaN, ties.
fn specials() -> Vec<f32> {
    let mut bits = vec![0, 1, 2, 3, 0x800, 0x12_3456, 0x7f_fffe, 0x7f_ffff, 0x80_0000, 0x80_0001, 0xff_ffff];
    bits.extend([
        0x7f7f_ffff,
        0x7f7f_fffe,
        0x7f00_0000,
        0x7f00_0001,
        0x7e80_0000,
        0x7f80_0000,
        0x7f80_0001,
        0x7fc0_0000,
    ]);
    bits.extend([
        0x3f80_0000,
        0x3f80_0001,
        0x3f7f_ffff,
        0x3f00_0000,
        0x4000_0000,
        0x4040_0000,
        0x3fc0_0000,
        0x3fff_ffff,
    ]);
    bits.extend([0x3380_0000, 0x3380_0001, 0x3400_0000, 0x3f80_0003, 0x4b00_0000, 0x4b7f_ffff, 0x4b80_0001]);
    bits.extend([0x0c80_0000, 0x2000_0000, 0x2000_0001, 0x5f80_0000, 0x5f80_0001, 0x3380_07ff, 0x1f80_0000]);
    bits.extend(bits.clone().iter().map(|b| b | 0x8000_0000));
    bits.into_iter().map(f32::from_bits).collect()
}

/// Runs `check` over `0..n` in blocks, each with a generator of its own.
fn parallel(n: u64, check: impl Fn(&mut Rng) + Sync) {
    const BLOCK: u64 = 1 << 20;
    (0..n.div_ceil(BLOCK)).into_par_iter().for_each(|block| {
        let mut rng = Rng(block << 40 | 0x5eed);
        for _ in 0..BLOCK.min(n - block * BLOCK) {
            check(&mut rng);
        }
    });
}

/// A value from one of several classes, so that limits and cancellation are not left to chance.
fn any(rng: &mut Rng) -> f32 {
    let (class, bits) = (rng.next() % 8, rng.bits());
    let exponent = |low: u32, span: u32| (bits & 0x807f_ffff) | ((low + (bits >> 5) % span) << 23);
    f32::from_bits(match class {
        0 => exponent(0, 3),
        1 => exponent(60, 8),
        2 | 3 => exponent(120, 14),
        4 => exponent(250, 5),
        // Few significant bits: exact results and ties.
        5 => bits & 0xffff_0000,
        _ => bits,
    })
}

fn same(got: f32, want: f32) -> bool {
    same_bits(got.to_bits(), want.to_bits())
}

/// Unit of binary32 at `v`, for normal values.
fn ulp(v: f64) -> f64 {
    f64::from_bits((v.to_bits() >> 52 & 0x7ff) << 52) * 2f64.powi(-23)
}

const MIN_NORMAL: f64 = f32::MIN_POSITIVE as f64;

/// Largest error, in ulp, of `f` over every `step`-th bit pattern for which `reference` gives a value; the error of a
/// result is infinite where `f` and `reference` differ in kind. Returns the error and where it was found.
fn worst(
    step: usize,
    f: impl Fn(f32) -> f32 + Sync,
    reference: impl Fn(f32) -> Option<f64> + Sync,
) -> (f64, f32) {
    let of = |bits: u32| {
        let x = f32::from_bits(bits);
        match reference(x) {
            None => (0.0, x),
            Some(want) => {
                let got = f64::from(f(x));
                let error = (got - want).abs() / ulp(want);
                (if error.is_nan() { f64::INFINITY } else { error }, x)
            }
        }
    };
    let larger = |a: (f64, f32), b: (f64, f32)| if b.0 > a.0 { b } else { a };
    let walk = (0..=u16::MAX as u32).into_par_iter().map(|high| {
        let first = (step - ((high as usize) << 16) % step) % step;
        (first..1 << 16).step_by(step).map(|low| of(high << 16 | low as u32)).fold((0.0, 0.0), larger)
    });
    let walk = walk.reduce(|| (0.0, 0.0), larger);
    specials().into_iter().map(|x| of(x.to_bits())).fold(walk, larger)
}

/// A prime, so that a sampled walk meets every residue of the low bits.
const SAMPLE: usize = 97;

// ---------------------------------------------------------------------------------------------------------------
// One-argument functions.

fn rsqrt_walk(step: usize) {
    let (error, at) =
        worst(step, rsqrt, |x| (x > 0.0 && x < f32::INFINITY).then(|| 1.0 / f64::from(x).sqrt()));
    println!("rsqrt: {error:.6} ulp at {at:e} ({:08x})", at.to_bits());
    assert!(error <= 0.501);
}

fn exp_walk(step: usize) {
    let (error, at) = worst(step, exp, |x| (EXP_LOW..=EXP_HIGH).contains(&x).then(|| f64::from(x).exp()));
    println!("exp: {error:.6} ulp at {at:e} ({:08x})", at.to_bits());
    assert!(error <= 0.69);
}

/// What `exp_walk` does not measure.
fn exp_outside_walk(step: usize) {
    (0..=u32::MAX >> 16).into_par_iter().for_each(|high| {
        for low in (high as usize % step..1 << 16).step_by(step) {
            let x = f32::from_bits(high << 16 | low as u32);
            if x < EXP_LOW {
                assert_eq!(exp(x).to_bits(), 0, "{x:e}");
            } else if x > EXP_HIGH {
                assert_eq!(exp(x), f32::INFINITY, "{x:e}");
            } else if x.is_nan() {
                assert!(exp(x).is_nan());
            }
        }
    });
}

fn sigmoid_reference(x: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(x)).exp())
}

fn sigmoid_walk(step: usize) {
    let (error, at) = worst(step, sigmoid, |x| {
        let want = sigmoid_reference(x);
        (!x.is_nan() && want >= MIN_NORMAL).then_some(want)
    });
    println!("sigmoid: {error:.6} ulp at {at:e} ({:08x})", at.to_bits());
    assert!(error <= 1.5);
    // Subnormal results, all of them, in units of 2^-149.
    let error = ((-87f32).to_bits()..=(-EXP_HIGH).to_bits())
        .map(|bits| (f32::from_bits(bits), sigmoid_reference(f32::from_bits(bits))))
        .filter(|&(_, want)| want < MIN_NORMAL)
        .map(|(x, want)| (f64::from(sigmoid(x)) - want).abs() * 2f64.powi(149))
        .fold(0.0, f64::max);
    println!("sigmoid, subnormal results: {error:.6} units of 2^-149");
    assert!(error > 0.0 && error <= 1.0);
}

fn recip_walk(step: usize) {
    (0..=u32::MAX >> 16).into_par_iter().for_each(|high| {
        for low in (high as usize % step..1 << 16).step_by(step) {
            let x = f32::from_bits(high << 16 | low as u32);
            assert!(same(div_int(1.0, x), 1.0 / x), "1 / {x:e}");
        }
    });
}

/// The quotients of the 8-bit quantisers.
fn by_127_walk(step: usize) {
    (0..=0x7f80u32).into_par_iter().for_each(|high| {
        for low in (high as usize % step..1 << 16).step_by(step) {
            let x = f32::from_bits(high << 16 | low as u32);
            assert!(same(div_int(x, 127.0), x / 127.0), "{x:e} / 127");
        }
    });
}

#[test]
fn rsqrt_sample() {
    rsqrt_walk(SAMPLE);
}

#[test]
#[ignore = "all 2^32 inputs"]
fn rsqrt_all() {
    rsqrt_walk(1);
}

#[test]
fn rsqrt_special() {
    assert_eq!(rsqrt(0.0), f32::INFINITY);
    assert_eq!(rsqrt(-0.0), f32::NEG_INFINITY);
    assert_eq!(rsqrt(f32::INFINITY).to_bits(), 0);
    for x in [-1.0, f32::NEG_INFINITY, -f32::MIN_POSITIVE, -f32::from_bits(1), f32::NAN] {
        assert!(rsqrt(x).is_nan(), "{x:e}");
    }
    for e in -74..=63 {
        assert_eq!(rsqrt(2f64.powi(2 * e) as f32), 2f32.powi(-e));
    }
}

#[test]
fn exp_sample() {
    exp_walk(SAMPLE);
}

#[test]
#[ignore = "all 2^32 inputs"]
fn exp_all() {
    exp_walk(1);
    exp_outside_walk(1);
}

#[test]
fn exp_limits() {
    assert!(f64::from(EXP_LOW).exp() >= MIN_NORMAL && f64::from(EXP_LOW.next_down()).exp() < MIN_NORMAL);
    // 2^128 - 2^103 is where rounding to binary32 overflows.
    let limit = 2f64.powi(128) - 2f64.powi(103);
    assert!(f64::from(EXP_HIGH).exp() < limit && f64::from(EXP_HIGH.next_up()).exp() >= limit);
    for (x, want) in [
        (EXP_LOW.next_down(), 0.0),
        (f32::NEG_INFINITY, 0.0),
        (f32::MIN, 0.0),
        (EXP_HIGH.next_up(), f32::INFINITY),
        (f32::MAX, f32::INFINITY),
        (f32::INFINITY, f32::INFINITY),
        (0.0, 1.0),
        (-0.0, 1.0),
        (f32::from_bits(1), 1.0),
    ] {
        assert_eq!(exp(x).to_bits(), want.to_bits(), "{x:e}");
    }
    assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
    exp_outside_walk(SAMPLE);
}

#[test]
fn sigmoid_sample() {
    sigmoid_walk(SAMPLE);
}

#[test]
#[ignore = "all 2^32 inputs"]
fn sigmoid_all() {
    sigmoid_walk(1);
}

#[test]
fn sigmoid_special() {
    for (x, want) in [
        (0.0, 0.5),
        (-0.0, 0.5),
        (f32::INFINITY, 1.0),
        (f32::MAX, 1.0),
        (f32::NEG_INFINITY, 0.0),
        (-EXP_HIGH.next_up(), 0.0),
    ] {
        assert_eq!(sigmoid(x).to_bits(), f32::to_bits(want), "{x:e}");
    }
    assert!(sigmoid(f32::NAN).is_nan());
}

#[test]
fn recip_sample() {
    recip_walk(SAMPLE);
    specials().into_iter().for_each(|x| assert!(same(recip(x), 1.0 / x)));
}

#[test]
#[ignore = "all 2^32 inputs"]
fn recip_all() {
    recip_walk(1);
}

#[test]
fn by_127_sample() {
    by_127_walk(SAMPLE);
    for h in 0..=0x7c00u16 {
        let amax = f16_to_f32(h);
        assert!(same(div_int(amax, 127.0), amax / 127.0), "{h:04x} / 127");
    }
}

#[test]
#[ignore = "all 2^31 dividends"]
fn by_127_all() {
    by_127_walk(1);
}

#[test]
fn rne_rounds_half_to_even() {
    let limit = 2f32.powi(22).to_bits();
    (0..limit).into_par_iter().step_by(13).chain([0x3f00_0000, 0x3fc0_0000, limit - 1]).for_each(|bits| {
        for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
            // Adding +0 turns the -0 of the standard function into +0.
            assert_eq!(rne(x).to_bits(), (x.round_ties_even() + 0.0).to_bits(), "{x:e}");
        }
    });
}

#[test]
fn relu_and_nan() {
    for x in specials() {
        let want = if x.is_nan() { 0.0 } else { x.max(0.0) + 0.0 };
        assert_eq!(relu(x).to_bits(), want.to_bits(), "{x:e}");
        assert_eq!(is_nan(x), x.is_nan());
    }
}

#[test]
fn order_key_is_a_total_order() {
    let values = specials();
    for &x in &values {
        for &y in &values {
            let want = match x.partial_cmp(&y) {
                Some(order) => order,
                None => y.is_nan().cmp(&x.is_nan()),
            };
            assert_eq!(order_key(x).cmp(&order_key(y)), want, "{x:e} {y:e}");
        }
    }
    assert_eq!(order_key(-f32::NAN), 0);
    assert!(order_key(f32::NEG_INFINITY) > 0);
    assert_eq!(order_key(-0.0), 0x8000_0000);
}

// ---------------------------------------------------------------------------------------------------------------
// binary16.

fn to_f16_is_right(x: f32) {
    let (got, want) = (f32_to_f16(x), half::f16::from_f32(x));
    assert!(got == want.to_bits() || (x.is_nan() && half::f16::from_bits(got).is_nan()), "{x:e}: {got:04x}");
}

#[test]
fn f16_to_f32_all() {
    for h in 0..=u16::MAX {
        let want = half::f16::from_bits(h).to_f32();
        assert!(same(f16_to_f32(h), want), "{h:04x}");
        if !want.is_nan() {
            assert_eq!(f32_to_f16(want), h);
        }
    }
}

#[test]
fn f32_to_f16_boundaries() {
    // Each value, the middle to the next one (the last middle is where overflow begins), and their neighbours.
    for h in 0..0x7c00u16 {
        let low = f16_to_f32(h);
        let high = if h == 0x7bff { 65_536.0 } else { f16_to_f32(h + 1) };
        let middle = (low + high) * 0.5;
        for x in [low, middle, high].into_iter().flat_map(|x| [x.next_down(), x, x.next_up()]) {
            to_f16_is_right(x);
            to_f16_is_right(-x);
        }
    }
    specials().into_iter().for_each(to_f16_is_right);
    parallel(1 << 24, |rng| {
        let bits = rng.bits();
        // Half of them where a binary16 result is neither zero nor infinite.
        let near = (bits & 0x807f_ffff) | ((100 + (bits >> 7) % 45) << 23);
        to_f16_is_right(f32::from_bits(if rng.next() & 1 == 0 { bits } else { near }));
    });
}

#[test]
#[ignore = "all 2^32 inputs"]
fn f32_to_f16_all() {
    (0..=u32::MAX >> 16).into_par_iter().for_each(|high| {
        (0..1 << 16).for_each(|low| to_f16_is_right(f32::from_bits(high << 16 | low)));
    });
}

// ---------------------------------------------------------------------------------------------------------------
// Division.

fn quotient_is_right(a: f32, b: f32) {
    let (got, want) = (div_int(a, b), a / b);
    assert!(
        same(got, want),
        "{:08x} / {:08x}: {:08x}, not {:08x}",
        a.to_bits(),
        b.to_bits(),
        got.to_bits(),
        want.to_bits()
    );
}

/// Quotients next to halfway between two neighbours, next to overflow and to the smallest numbers: `a` is a product
/// of `b` and such a value, or one of its neighbours.
fn hard_quotient(rng: &mut Rng) {
    let (b, bits) = (any(rng), rng.bits());
    let exponent = match rng.next() % 3 {
        0 => rng.bits() % 255,
        1 => rng.bits() % 2,
        _ => 252 + rng.bits() % 3,
    };
    let q = f32::from_bits((bits & 0x807f_ffff) | (exponent << 23));
    let middle = (f64::from(q) + f64::from(q.next_up())) * 0.5;
    let a = (middle * f64::from(b)) as f32;
    for a in [a.next_down(), a, a.next_up()] {
        quotient_is_right(a, b);
    }
}

#[test]
fn div_sample() {
    for a in specials() {
        for b in specials() {
            quotient_is_right(a, b);
        }
    }
    parallel(10_000_000, |rng| quotient_is_right(any(rng), any(rng)));
    parallel(1_000_000, hard_quotient);
}

#[test]
#[ignore = "10^9 pairs and all pairs of exponents"]
fn div_long() {
    parallel(1_000_000_000, |rng| quotient_is_right(any(rng), any(rng)));
    parallel(100_000_000, hard_quotient);
    (0..=255u32 * 256).into_par_iter().for_each(|pair| {
        let mut rng = Rng(u64::from(pair));
        let (ea, eb) = ((pair / 256) << 23, (pair % 256) << 23);
        let fixed = [0, 1, 2, 0x40_0000, 0x3f_ffff, 0x7f_fffe, 0x7f_ffff];
        for i in 0..16 {
            for j in 0..16 {
                let mut fraction = |i: usize| fixed.get(i).copied().unwrap_or(rng.bits() & 0x7f_ffff);
                quotient_is_right(f32::from_bits(ea | fraction(i)), -f32::from_bits(eb | fraction(j)));
            }
        }
    });
}

// ---------------------------------------------------------------------------------------------------------------
// Fused multiply-add.

fn fma_is_right(a: f32, b: f32, c: f32) {
    let (got, want) = (fma_int(a, b, c), a.mul_add(b, c));
    assert!(
        same(got, want),
        "{:08x} * {:08x} + {:08x}: {:08x}, not {:08x}",
        a.to_bits(),
        b.to_bits(),
        c.to_bits(),
        got.to_bits(),
        want.to_bits()
    );
}

fn fma_triple(rng: &mut Rng) {
    let (a, b) = (any(rng), any(rng));
    let p = a * b;
    // The addend: anything; the rounded product or a neighbour; about the product's size, a little or far below.
    let c = match rng.next() % 4 {
        0 => any(rng),
        1 => -f32::from_bits(p.to_bits().wrapping_add(rng.bits() % 5).wrapping_sub(2)),
        2 => {
            let e = (p.to_bits() >> 23 & 255) + rng.bits() % 80;
            f32::from_bits((rng.bits() & 0x807f_ffff) | (e.saturating_sub(50).min(254) << 23))
        }
        _ => -p * 2f32.powi((rng.bits() % 60) as i32 - 30),
    };
    fma_is_right(a, b, c);
}

#[test]
fn fma_int_sample() {
    let values = specials();
    values.par_iter().for_each(|&a| {
        for &b in &values {
            values.iter().for_each(|&c| fma_is_right(a, b, c));
        }
    });
    parallel(10_000_000, fma_triple);
}

#[test]
#[ignore = "10^9 triples"]
fn fma_int_long() {
    parallel(1_000_000_000, fma_triple);
}

/// What every lowering has to keep apart: fused and unfused, and a product used on its own beside a sum.
#[test]
fn fused_differs_from_unfused() {
    let [a, b, c] = Op::Fma.inputs(1, 50_000);
    let rows: Vec<_> = (0..a.len()).map(|i| (a[i], b[i], c[i])).collect();
    let differ =
        |p: Op, q: Op| rows.iter().filter(|r| !p.same(p.eval(r.0, r.1, r.2), q.eval(r.0, r.1, r.2))).count();
    assert!(differ(Op::Fma, Op::MulAdd) > 8_000);
    let exact = rows.iter().filter(|r| {
        let (x, y, z) = (f32::from_bits(r.0), f32::from_bits(r.1), f32::from_bits(r.2));
        let contracted = x.mul_add(y, z) - x * y;
        Op::ProductBeside.same(Op::ProductBeside.eval(r.0, r.1, r.2), contracted.to_bits())
    });
    let n = rows.len() - exact.count();
    assert!(n > 2_000, "{n}");
}

/// fma(a, b, -(a*b)) is the rounding error of the product, by exact arithmetic in f64.
#[test]
fn fma_cancellation() {
    let [a, b, _] = Op::FmaCancel.inputs(2, 200_000);
    let mut nonzero = 0;
    for (a, b) in a.into_iter().zip(b) {
        let (x, y) = (f32::from_bits(a), f32::from_bits(b));
        let p = x * y;
        // The error is a binary32 number when it is not below the smallest one.
        if p.is_finite() && p.abs() > 2f32.powi(-100) {
            let want = f64::from(x) * f64::from(y) - f64::from(p);
            assert_eq!(f64::from(f32::from_bits(Op::FmaCancel.eval(a, b, 0))), want);
            nonzero += usize::from(want != 0.0);
        }
    }
    assert!(nonzero > 50_000);
    // With constants: none of the four rows is 0 when fused; three are when not.
    for a in 0..4 {
        assert_ne!(f32::from_bits(Op::FmaConstant.eval(a, 0, 0)), 0.0, "row {a}");
    }
    assert_eq!(Op::FmaConstant.eval(0, 0, 0), (1.0f32 / 2f32.powi(46)).to_bits());
}

// ---------------------------------------------------------------------------------------------------------------
// Sums.

#[test]
fn lane_products_name_their_order() {
    let mut rng = Rng(3);
    for _ in 0..1000 {
        let k: [f32; 8] = std::array::from_fn(|_| any(&mut rng));
        let q: [f32; 8] = std::array::from_fn(|_| any(&mut rng));
        let four = k[3].mul_add(q[3], k[2].mul_add(q[2], k[0].mul_add(q[0], k[1] * q[1])));
        assert!(same(lane_product4(&k, &q), four));
        let eight = k[7].mul_add(q[7], k[6].mul_add(q[6], k[5].mul_add(q[5], k[4].mul_add(q[4], four))));
        assert!(same(lane_product8(&k, &q), eight));
    }
}

#[test]
fn tree_equals_butterfly_and_stack() {
    let mut rng = Rng(4);
    for _ in 0..1000 {
        let v: [f32; 32] = std::array::from_fn(|_| f32::from_bits((rng.bits() & 0x83ff_ffff) | 0x3c00_0000));
        let mut lanes = v;
        for n in [16, 8, 4, 2, 1] {
            lanes = std::array::from_fn(|t| lanes[t] + lanes[t ^ n]);
        }
        let want = tree32(&mut v.clone());
        assert!(lanes.iter().all(|l| l.to_bits() == want.to_bits()));
        let mut stack: Vec<f32> = Vec::new();
        for i in 0..32u32 {
            let mut sum = v[tree_leaf_order(i) as usize];
            for _ in 0..i.trailing_ones() {
                sum += stack.pop().unwrap();
            }
            stack.push(sum);
        }
        assert_eq!(stack[0].to_bits(), want.to_bits());
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The probe's own definitions.

#[test]
fn probe_inputs_cover() {
    for op in Op::ALL {
        let columns = op.inputs(7, 20_000);
        assert_eq!(columns, op.inputs(7, 20_000), "{}", op.name());
        assert_ne!(columns, op.inputs(8, 20_000), "{}", op.name());
        let results: std::collections::HashSet<u32> =
            (0..20_000).map(|i| op.eval(columns[0][i], columns[1][i], columns[2][i])).collect();
        let least = match op {
            Op::IsNan => 2,
            Op::FmaConstant => 4,
            _ => 1000,
        };
        assert!(results.len() >= least, "{}: {} results", op.name(), results.len());
    }
    let ids: Vec<u32> = Op::ALL.iter().map(|op| op.id()).collect();
    assert_eq!(ids, (0..Op::ALL.len() as u32).collect::<Vec<_>>());
}

#[test]
fn subnormals_are_told() {
    let (one, tiny, small) = (1f32.to_bits(), 1, f32::MIN_POSITIVE.to_bits());
    let half = 0.5f32.to_bits();
    assert!(subnormal_involved(Op::Add, one, tiny, 0));
    assert!(!subnormal_involved(Op::Add, one, one, tiny));
    assert!(subnormal_involved(Op::Mul, small, half, 0));
    assert!(subnormal_involved(Op::MulAdd, small, half, one));
    assert!(!subnormal_involved(Op::Fma, small, half, one));
    assert!(subnormal_involved(Op::LaneProduct4, one, tiny, one));
    assert!(!subnormal_involved(Op::Div, tiny, one, 0));
    // Rounded up to the smallest normal number; the value before rounding is below it.
    assert!(subnormal_involved(Op::Mul, small, 0x3f7f_ffff, 0));
}

// ---------------------------------------------------------------------------------------------------------------
// The shader text.

/// Every combination of the interchangeable pieces, as the kernels are put together, parses and validates.
#[cfg(feature = "wgpu")]
#[test]
fn every_wgsl_combination_validates() {
    let ops = [include_str!("../wgsl/exact/ops_plain.wgsl"), include_str!("../wgsl/exact/ops_guarded.wgsl")];
    let fmas = [
        include_str!("../wgsl/exact/fma_plain.wgsl"),
        include_str!("../wgsl/exact/fma_guarded.wgsl"),
        include_str!("../wgsl/exact/fma_soft.wgsl"),
    ];
    let rest = [
        include_str!("../wgsl/exact/math.wgsl"),
        include_str!("../wgsl/exact/f16.wgsl"),
        include_str!("../wgsl/exact/lane.wgsl"),
        include_str!("../wgsl/exact/probe.wgsl"),
    ];
    for op in ops {
        for fma in fmas {
            let text = [op, fma].into_iter().chain(rest).collect::<Vec<_>>().join("\n");
            let module =
                naga::front::wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(&text)));
            // No capability beyond the core language.
            let mut validator = naga::valid::Validator::new(
                naga::valid::ValidationFlags::all(),
                naga::valid::Capabilities::empty(),
            );
            validator.validate(&module).unwrap_or_else(|e| panic!("{}", e.emit_to_string(&text)));
            assert_eq!(module.entry_points.len(), 1);
            assert_eq!(module.entry_points[0].workgroup_size, [64, 1, 1]);
        }
    }
}

/// The shader takes the operations' numbers from its switch: each of them but the last has a case, in order.
#[test]
fn probe_has_a_case_for_every_op() {
    let text = include_str!("../wgsl/exact/probe.wgsl");
    let switch = &text[text.find("switch params.op").unwrap()..];
    let cases: Vec<u32> = switch
        .lines()
        .filter_map(|l| l.trim().strip_prefix("case ")?.strip_suffix("u: {")?.parse().ok())
        .collect();
    assert_eq!(cases, (0..Op::ALL.len() as u32 - 1).collect::<Vec<_>>());
    assert!(switch.contains("default: {"));
}
