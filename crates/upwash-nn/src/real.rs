//! Numbers that networks compute with, and vectors of them.

use pulp::Simd;

/// A floating-point number: `f32`, which networks train with, or `f64`, which gradients are checked with.
///
/// The methods that take a `Simd` compute with the vectors of an instruction set. The implementations for both types
/// are the same except for their names in `pulp`.
pub trait Real:
    Copy
    + Default
    + PartialOrd
    + Send
    + Sync
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
    + std::iter::Sum
    + 'static
{
    /// A vector of this number in the instruction set `S`.
    type Vector<S: Simd>: Copy;

    /// Rounds an `f64`.
    fn of(number: f64) -> Self;
    /// Converts to `f64`.
    fn to_f64(self) -> f64;
    /// e to the power of this number.
    fn exp(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The larger of two numbers; NaN if one of them is NaN.
    fn maximum(self, other: Self) -> Self;

    /// A vector of equal elements.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;
    /// The vector at the start of a slice.
    fn load<S: Simd>(slice: &[Self]) -> Self::Vector<S>;
    /// Writes a vector to the start of a slice.
    fn store<S: Simd>(slice: &mut [Self], vector: Self::Vector<S>);
    /// a b + c, rounded once where the instructions can.
    fn mul_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;
    /// a + b.
    fn plus<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// a - b.
    fn minus<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// a b.
    fn times<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// The value where the gate is positive, and 0 elsewhere.
    fn gate<S: Simd>(simd: S, gate: Self::Vector<S>, value: Self::Vector<S>) -> Self::Vector<S>;
}

macro_rules! real {
    ($real:ident, $vector:ident, $as_simd:ident, $as_mut_simd:ident, $splat:ident, $mul_add:ident, $add:ident, $sub:ident,
     $mul:ident, $greater:ident, $select:ident) => {
        impl Real for $real {
            type Vector<S: Simd> = S::$vector;

            #[inline(always)]
            fn of(number: f64) -> Self {
                number as $real
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn exp(self) -> Self {
                $real::exp(self)
            }

            #[inline(always)]
            fn tanh(self) -> Self {
                $real::tanh(self)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                if self < other || other.is_nan() { other } else { self }
            }

            #[inline(always)]
            fn splat<S: Simd>(simd: S, value: Self) -> S::$vector {
                simd.$splat(value)
            }

            #[inline(always)]
            fn load<S: Simd>(slice: &[Self]) -> S::$vector {
                S::$as_simd(slice).0[0]
            }

            #[inline(always)]
            fn store<S: Simd>(slice: &mut [Self], vector: S::$vector) {
                S::$as_mut_simd(slice).0[0] = vector;
            }

            #[inline(always)]
            fn mul_add<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                simd.$mul_add(a, b, c)
            }

            #[inline(always)]
            fn plus<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$add(a, b)
            }

            #[inline(always)]
            fn minus<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$sub(a, b)
            }

            #[inline(always)]
            fn times<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$mul(a, b)
            }

            #[inline(always)]
            fn gate<S: Simd>(simd: S, gate: S::$vector, value: S::$vector) -> S::$vector {
                let zero = simd.$splat(0.0);
                simd.$select(simd.$greater(gate, zero), value, zero)
            }
        }
    };
}

real!(
    f32,
    f32s,
    as_simd_f32s,
    as_mut_simd_f32s,
    splat_f32s,
    mul_add_e_f32s,
    add_f32s,
    sub_f32s,
    mul_f32s,
    greater_than_f32s,
    select_f32s
);
real!(
    f64,
    f64s,
    as_simd_f64s,
    as_mut_simd_f64s,
    splat_f64s,
    mul_add_e_f64s,
    add_f64s,
    sub_f64s,
    mul_f64s,
    greater_than_f64s,
    select_f64s
);
