//! Known answers for the conformance probe: one operation a case, its inputs and its result.

use core::cell::Cell;

use super::{
    INF, SIGN, div, exp, f16_to_f32, f32_to_f16, fma, is_nan, order_key, recip, relu, rne, rsqrt, sigmoid,
};

/// An operation of `wgsl/exact/probe.wgsl`: three words in, one word out.
///
/// Float operands and results travel as bits. Every operation is defined for every input, so that a probe can feed
/// anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[non_exhaustive]
pub enum Op {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a * b + c`, rounded twice.
    MulAdd,
    /// `((a*b + b*c) + c*a) + a*a`, every step rounded.
    SumProducts,
    /// The rounding error of `a + b` by Knuth's six steps.
    TwoSumLow,
    /// `(p + c) - p` with `p = a * b`: a product beside a sum that uses it.
    ProductBeside,
    /// `fma(a, b, c)`.
    Fma,
    /// `fma(a, b, -(a * b))`: the rounding error of the product.
    FmaCancel,
    /// The same with constant operands, one of four rows chosen by `a`.
    FmaConstant,
    /// `a / b`.
    Div,
    /// `1 / a`.
    Recip,
    /// [`rsqrt`] of `a`.
    Rsqrt,
    /// [`exp`] of `a`.
    Exp,
    /// [`sigmoid`] of `a`.
    Sigmoid,
    /// [`relu`] of `a`.
    Relu,
    /// [`rne`] of `a`, 0 where `|a| >= 2^22` or NaN.
    Rne,
    /// [`f32_to_f16`] of `a`.
    ToF16,
    /// [`f16_to_f32`] of the low half of `a`.
    FromF16,
    /// [`order_key`] of `a`.
    OrderKey,
    /// [`is_nan`] of `a`: 0 or 1.
    IsNan,
    /// The low 24 bits of `a`, as u32, to f32.
    UintToFloat,
    /// `a` truncated to i32, 0 where it does not fit.
    FloatToInt,
    /// `(a >> 1) / (b | 1)` as i32, truncated.
    IntDiv,
    /// `dot4I8Packed(a, b)`.
    Dot4I8,
    /// [`lane_product4`](super::lane_product4) of `(a, b, c, a)` and `(b, c, a, a)`.
    LaneProduct4,
    /// [`lane_product8`](super::lane_product8) of `(a, b, c, a, b, c, c, b)` and `(b, c, a, a, b, c, a, c)`.
    LaneProduct8,
    /// Four heads at once, [`lane_product4`](super::lane_product4) of `(a, b, c, a)` and head `h`'s query, for head `a % 4`. The queries
    /// are `(b, c, a, a)` rotated left by `h`.
    LaneProductHeads,
}

impl Op {
    /// Every operation, in the order of its number.
    pub const ALL: [Op; 28] = [
        Op::Add,
        Op::Sub,
        Op::Mul,
        Op::MulAdd,
        Op::SumProducts,
        Op::TwoSumLow,
        Op::ProductBeside,
        Op::Fma,
        Op::FmaCancel,
        Op::FmaConstant,
        Op::Div,
        Op::Recip,
        Op::Rsqrt,
        Op::Exp,
        Op::Sigmoid,
        Op::Relu,
        Op::Rne,
        Op::ToF16,
        Op::FromF16,
        Op::OrderKey,
        Op::IsNan,
        Op::UintToFloat,
        Op::FloatToInt,
        Op::IntDiv,
        Op::Dot4I8,
        Op::LaneProduct4,
        Op::LaneProduct8,
        Op::LaneProductHeads,
    ];

    /// The number by which the shader knows it.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// A short name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Op::Add => "add",
            Op::Sub => "sub",
            Op::Mul => "mul",
            Op::MulAdd => "mul-add, two roundings",
            Op::SumProducts => "sum of products in order",
            Op::TwoSumLow => "low word of two-sum",
            Op::ProductBeside => "product beside its sum",
            Op::Fma => "fma",
            Op::FmaCancel => "fma(a, b, -(a*b))",
            Op::FmaConstant => "fma of constants",
            Op::Div => "div",
            Op::Recip => "recip",
            Op::Rsqrt => "rsqrt",
            Op::Exp => "exp",
            Op::Sigmoid => "sigmoid",
            Op::Relu => "relu",
            Op::Rne => "round to integer",
            Op::ToF16 => "f32 to f16",
            Op::FromF16 => "f16 to f32",
            Op::OrderKey => "order key",
            Op::IsNan => "NaN test",
            Op::UintToFloat => "u32 to f32",
            Op::FloatToInt => "f32 to i32",
            Op::IntDiv => "i32 division",
            Op::Dot4I8 => "dot4I8Packed",
            Op::LaneProduct4 => "lane product of 4",
            Op::LaneProduct8 => "lane product of 8",
            Op::LaneProductHeads => "lane product of 4 heads",
        }
    }

    /// How many of the operands it reads.
    pub fn arity(self) -> usize {
        match self {
            Op::Add
            | Op::Sub
            | Op::Mul
            | Op::TwoSumLow
            | Op::FmaCancel
            | Op::Div
            | Op::IntDiv
            | Op::Dot4I8 => 2,
            Op::MulAdd | Op::SumProducts | Op::ProductBeside | Op::Fma => 3,
            Op::LaneProduct4 | Op::LaneProduct8 | Op::LaneProductHeads => 3,
            _ => 1,
        }
    }

    /// Whether the result is an f32, so that all NaN are one value.
    pub fn is_float(self) -> bool {
        !matches!(self, Op::ToF16 | Op::OrderKey | Op::IsNan | Op::FloatToInt | Op::IntDiv | Op::Dot4I8)
    }

    /// Whether `got` is the result `want`: equal bits, or both NaN where the result is a float.
    pub fn same(self, got: u32, want: u32) -> bool {
        if self.is_float() { same_bits(got, want) } else { got == want }
    }

    /// The result.
    pub fn eval(self, a: u32, b: u32, c: u32) -> u32 {
        self.trace(a, b, c, &Cell::new(false))
    }

    /// The result; sets `subnormal` when a float that an adapter handles as a float on the way is subnormal. Steps
    /// that are integer code in the shader do not count.
    fn trace(self, a: u32, b: u32, c: u32, subnormal: &Cell<bool>) -> u32 {
        let (x, y, z) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
        let arg = |v: f32| {
            subnormal.set(subnormal.get() | v.is_subnormal());
            v
        };
        // A result that was rounded up to the smallest normal number counts too: it is flushed where an adapter
        // looks at the value before rounding.
        let note = |v: f32| {
            subnormal.set(subnormal.get() | (v != 0.0 && v.abs() <= f32::MIN_POSITIVE));
            v
        };
        let float = match self {
            Op::Add => note(arg(x) + arg(y)),
            Op::Sub => note(arg(x) - arg(y)),
            Op::Mul => note(arg(x) * arg(y)),
            Op::MulAdd => note(note(arg(x) * arg(y)) + arg(z)),
            Op::SumProducts => {
                let [x, y, z] = [x, y, z].map(arg);
                let s = note(note(x * y) + note(y * z));
                let s = note(s + note(z * x));
                note(s + note(x * x))
            }
            Op::TwoSumLow => {
                let s = note(arg(x) + arg(y));
                let t = note(s - x);
                let u = note(x - note(s - t));
                let v = note(y - t);
                note(u + v)
            }
            Op::ProductBeside => {
                let p = note(arg(x) * arg(y));
                note(note(p + arg(z)) - p)
            }
            Op::Fma => note(fma(arg(x), arg(y), arg(z))),
            Op::FmaCancel => {
                let p = note(arg(x) * arg(y));
                note(fma(x, y, -p))
            }
            Op::FmaConstant => {
                let [x, y, z] = FMA_CONSTANTS[(a & 3) as usize].map(f32::from_bits);
                fma(x, y, z)
            }
            Op::Div => div(x, y),
            Op::Recip => recip(x),
            Op::Rsqrt => rsqrt(x),
            Op::Exp => exp(x),
            Op::Sigmoid => sigmoid(x),
            Op::Relu => relu(arg(x)),
            Op::Rne => rne(if a & !SIGN < 0x4a80_0000 { x } else { 0.0 }),
            Op::FromF16 => f16_to_f32(a as u16),
            Op::UintToFloat => (a & 0x00ff_ffff) as f32,
            Op::ToF16 => return u32::from(f32_to_f16(x)),
            Op::OrderKey => return order_key(x),
            Op::IsNan => return u32::from(is_nan(x)),
            Op::FloatToInt => return if a & !SIGN < 0x4f00_0000 { x as i32 as u32 } else { 0 },
            Op::IntDiv => return ((a as i32 >> 1) / (b | 1) as i32) as u32,
            Op::Dot4I8 => {
                let dot = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
                return dot.map(|(p, q)| i32::from(p as i8) * i32::from(q as i8)).sum::<i32>() as u32;
            }
            Op::LaneProduct4 => lane_trace(&[x, y, z, x], &[y, z, x, x], &note),
            Op::LaneProduct8 => lane_trace(&[x, y, z, x, y, z, z, y], &[y, z, x, x, y, z, x, z], &note),
            Op::LaneProductHeads => {
                let mut q = [y, z, x, x];
                q.rotate_left((a & 3) as usize);
                lane_trace(&[x, y, z, x], &q, &note)
            }
        };
        float.to_bits()
    }

    /// `n` operand triples, the same for the same `seed` on every machine.
    ///
    /// The first rows pair every value of a table of special values (zeros, ones, limits, subnormals, infinities,
    /// NaN, halfway cases of several roundings, powers of two) with every other. The rest cycles through: any bits;
    /// moderate values; moderate values with `c = -(a * b)` rounded; values next to each other; values around the
    /// subnormal limit; products around the overflow limit; quotients around both limits; arguments that matter to
    /// [`exp`], next to multiples of ln 2 and of 1/2. The generator is splitmix64.
    pub fn inputs(self, seed: u64, n: usize) -> [Vec<u32>; 3] {
        let mut rng = SplitMix(seed ^ (u64::from(self.id()) << 32));
        let mut out = [Vec::with_capacity(n), Vec::with_capacity(n), Vec::with_capacity(n)];
        for i in 0..n {
            let count = SPECIAL.len();
            let row = if i < count * count {
                [SPECIAL[i / count], SPECIAL[i % count], SPECIAL[rng.next() as usize % count]]
            } else {
                rng.row(i % 8)
            };
            // Divisors of every size, else nearly all quotients are 0.
            let row = match self {
                Op::IntDiv => [row[0], ((row[1] as i32) >> (row[2] % 32)) as u32, row[2]],
                _ => row,
            };
            for (column, word) in out.iter_mut().zip(row) {
                column.push(word);
            }
        }
        out
    }
}

/// Whether two f32 bit patterns are the same value: equal, or both NaN.
#[inline(always)]
pub fn same_bits(a: u32, b: u32) -> bool {
    a == b || (a & !SIGN > INF && b & !SIGN > INF)
}

/// Whether an operand, an intermediate or the result of the operation is subnormal where the adapter computes with
/// floats; an adapter that flushes those to zero can only be held to the other inputs. A result that is the smallest
/// normal number counts too, since it may have been rounded up to it.
///
/// Division, conversions, [`rsqrt`], [`exp`], [`sigmoid`] and [`order_key`] never are: their shaders either take
/// integer steps or keep their floats away from the limit.
pub fn subnormal_involved(op: Op, a: u32, b: u32, c: u32) -> bool {
    let found = Cell::new(false);
    op.trace(a, b, c, &found);
    found.get()
}

/// The steps of [`lane_product4`](super::lane_product4) or [`lane_product8`](super::lane_product8), each shown to `note`.
fn lane_trace(k: &[f32], q: &[f32], note: &dyn Fn(f32) -> f32) -> f32 {
    for &v in k.iter().chain(q) {
        note(v);
    }
    let mut p = note(k[1] * q[1]);
    for i in (0..k.len()).filter(|&i| i != 1) {
        p = note(fma(k[i], q[i], p));
    }
    p
}

/// Operands of [`Op::FmaConstant`]: two products against their rounded values, a tie broken far below, and a
/// cancellation in the last place.
const FMA_CONSTANTS: [[u32; 3]; 4] = [
    [0x3f80_0001, 0x3f80_0001, 0xbf80_0002],
    [0x3eaa_aaab, 0x4040_0000, 0xbf80_0000],
    [0x3f80_0001, 0x3380_0000, 0x3f80_0000],
    [0x4049_0fdb, 0x402d_f854, 0xc108_a2c0],
];

#[rustfmt::skip]
const SPECIAL: [u32; 48] = [
    0x0000_0000, 0x8000_0000, 0x3f80_0000, 0xbf80_0000, // 0, 1
    0x0080_0000, 0x8080_0000, 0x0080_0001, 0x7f7f_ffff, // limits of the normal numbers
    0xff7f_ffff, 0x7f7f_fffe, 0x7f00_0000, 0x7e80_0000, // and below the upper one
    0x0000_0001, 0x8000_0001, 0x007f_ffff, 0x807f_ffff, // subnormal
    0x0040_0000, 0x0000_0003, 0x0012_3456, 0x0000_0800, //
    0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xffc1_2345, // infinities, NaN
    0x7f80_0001, 0x3f00_0000, 0x3f80_0001, 0x3f7f_ffff, // signalling NaN, 1/2, next to 1
    0x4000_0000, 0x4040_0000, 0x3fc0_0000, 0x3f80_0003, // 2, 3, 1.5
    0x3380_0000, 0x3380_0001, 0xb380_0000, 0x3400_0000, // half a unit of 1
    0x4b00_0000, 0x4b80_0000, 0x4b7f_ffff, 0xcb00_0001, // integers at the limit of the format
    0x4effffff, 0x477f_efff, 0x477f_f000, 0x3300_0000, // limits of i32 and binary16
    0x3300_0001, 0x387f_e000, 0x42fe_0000, 0x42ae_ac4f, // smallest binary16, 127, limit of exp
];

/// splitmix64, upper halves.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 32) as u32
    }

    /// Random sign and fraction, exponent field from `low` to `low + span - 1`.
    fn float(&mut self, low: u32, span: u32) -> u32 {
        (self.next() & 0x807f_ffff) | ((low + self.next() % span) << 23)
    }

    /// One of the values up to `units` steps from `bits`, with its sign.
    fn near(&mut self, bits: u32, units: u32) -> u32 {
        let step = self.next() % (2 * units + 1);
        (bits & SIGN) | ((bits & !SIGN) + step).saturating_sub(units).min(INF)
    }

    /// A row of one of the 8 classes.
    fn row(&mut self, class: usize) -> [u32; 3] {
        match class {
            0 => [self.next(), self.next(), self.next()],
            1 => [self.float(110, 36), self.float(110, 36), self.float(110, 36)],
            2 => {
                let (a, b) = (self.float(110, 36), self.float(110, 36));
                let c = -(f32::from_bits(a) * f32::from_bits(b));
                let units = self.next() % 2 * 4;
                [a, b, self.near(c.to_bits(), units)]
            }
            3 => {
                let a = self.float(120, 14);
                [a, self.near(a, 4) ^ (self.next() & SIGN), self.near(a, 4) ^ (self.next() & SIGN)]
            }
            4 => [self.float(0, 4), self.float(0, 140), self.float(0, 4)],
            5 => {
                let a = self.float(120, 134);
                let low = 380 - (a >> 23 & 255);
                [a, self.float(low.min(252), 3), self.float(240, 14)]
            }
            6 => {
                let a = self.float(1, 253);
                let e = a >> 23 & 255;
                // The quotient's exponent is at the lower or at the upper limit.
                let low = if self.next() & 1 == 0 { e + 126 } else { e.saturating_sub(128) };
                [a, self.float(low.clamp(1, 252), 3), self.float(0, 254)]
            }
            _ => {
                let k = (self.next() % 511) as f32 - 255.0;
                let step = if self.next() & 1 == 0 { core::f32::consts::LN_2 * 0.5 } else { 0.25 };
                let a = (k * step).to_bits();
                [self.near(a, 4), self.float(100, 28), self.near(a, 4)]
            }
        }
    }
}
