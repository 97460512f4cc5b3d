//! Element types: [`DType`] names them, [`Element`] are Rust's types for them.
use std::fmt;

use crate::ffi::c_enum;

c_enum! {
    /// Type of a tensor's elements.
    DType {
        /// 32-bit floating point.
        F32 = DS_FLOAT32,
        /// 64-bit floating point.
        F64 = DS_FLOAT64,
        /// IEEE 754 binary16.
        F16 = DS_FLOAT16,
        /// The upper half of a 32-bit floating point number.
        Bf16 = DS_BFLOAT16,
        /// 8-bit integer.
        I8 = DS_INT8,
        /// 16-bit integer.
        I16 = DS_INT16,
        /// 32-bit integer.
        I32 = DS_INT32,
        /// 64-bit integer.
        I64 = DS_INT64,
        /// 8-bit unsigned integer.
        U8 = DS_UINT8,
        /// 16-bit unsigned integer.
        U16 = DS_UINT16,
        /// 32-bit unsigned integer.
        U32 = DS_UINT32,
        /// 64-bit unsigned integer.
        U64 = DS_UINT64,
        /// A byte, 0 is false: [`Bool`].
        Bool = DS_BOOL,
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that tensors hold: plain numbers without padding, of which every bit pattern is valid.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Its name.
    const DTYPE: DType;
    /// Zero.
    const ZERO: Self;
}

macro_rules! elements {
    ($($type:ty = $dtype:ident, $zero:expr;)*) => {
        $(impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            const ZERO: Self = $zero;
        })*
    };
}
elements! {
    f32 = F32, 0.0;
    f64 = F64, 0.0;
    F16 = F16, F16(0);
    Bf16 = Bf16, Bf16(0);
    i8 = I8, 0;
    i16 = I16, 0;
    i32 = I32, 0;
    i64 = I64, 0;
    u8 = U8, 0;
    u16 = U16, 0;
    u32 = U32, 0;
    u64 = U64, 0;
    Bool = Bool, Bool(0);
}

/// An element of a tensor of [`DType::Bool`]: a byte, which is false when it is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl From<bool> for Bool {
    fn from(value: bool) -> Bool {
        Bool(value.into())
    }
}
impl From<Bool> for bool {
    fn from(value: Bool) -> bool {
        value.0 != 0
    }
}

/// A bfloat16 number by its bits.
///
/// ```
/// use ds::Bf16;
/// assert_eq!(Bf16::from_f32(1.0).to_f32(), 1.0);
/// assert_eq!(Bf16::from_f32(1.00390625).to_f32(), 1.0); // a tie goes to the even one
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// The nearest bfloat16 number; ties go to the even one.
    pub fn from_f32(value: f32) -> Bf16 {
        let bits = value.to_bits();
        if value.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x0040); // stays a NaN when the lower half is cut off
        }
        let half = 0x7fff + (bits >> 16 & 1);
        Bf16(((bits + half) >> 16) as u16)
    }
    /// The same number.
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// An IEEE 754 binary16 number by its bits.
///
/// ```
/// use ds::F16;
/// assert_eq!(F16::from_f32(0.1).to_f32(), 0.099975586);
/// assert_eq!(F16::from_f32(70000.0).to_f32(), f32::INFINITY);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

impl F16 {
    /// The nearest binary16 number; ties go to the even one, what is too large becomes infinite.
    pub fn from_f32(value: f32) -> F16 {
        let bits = value.to_bits();
        let sign = (bits >> 16 & 0x8000) as u16;
        let magnitude = bits & 0x7fff_ffff;
        if magnitude > 0x7f80_0000 {
            return F16(sign | 0x7e00 | (magnitude >> 13 & 0x3ff) as u16);
        }
        if magnitude >= 0x4780_0000 {
            return F16(sign | 0x7c00); // 65536 and more
        }
        if magnitude < 0x3880_0000 {
            // Subnormal, in units of 2^-24: the product is exact, so is the rounding.
            let units = f32::from_bits(magnitude) * 16_777_216.0;
            let floor = units as u32;
            let rest = units - floor as f32;
            let up = rest > 0.5 || (rest == 0.5 && floor & 1 == 1);
            return F16(sign | (floor + u32::from(up)) as u16);
        }
        // A carry of the rounding runs into the exponent, up to infinity, as it should.
        let rounded = magnitude - 0x3800_0000 + 0xfff + (magnitude >> 13 & 1);
        F16(sign | (rounded >> 13) as u16)
    }
    /// The same number.
    pub fn to_f32(self) -> f32 {
        let sign = u32::from(self.0 & 0x8000) << 16;
        let (exponent, fraction) = (u32::from(self.0 >> 10 & 0x1f), u32::from(self.0 & 0x3ff));
        match exponent {
            0 => {
                let magnitude = fraction as f32 / 16_777_216.0;
                f32::from_bits(sign | magnitude.to_bits())
            }
            31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
            _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
        }
    }
}

macro_rules! shown_as_f32 {
    ($($type:ident)*) => {
        $(impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
        impl From<$type> for f32 {
            fn from(value: $type) -> f32 {
                value.to_f32()
            }
        })*
    };
}
shown_as_f32! { Bf16 F16 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_comes_back() {
        for bits in 0..=u16::MAX {
            let (bf, f) = (Bf16(bits).to_f32(), F16(bits).to_f32());
            if bf.is_nan() {
                assert!(Bf16::from_f32(bf).to_f32().is_nan());
            } else {
                assert_eq!(Bf16::from_f32(bf), Bf16(bits));
            }
            if f.is_nan() {
                assert!(F16::from_f32(f).to_f32().is_nan());
            } else {
                assert_eq!(F16::from_f32(f), F16(bits));
            }
        }
    }

    #[test]
    fn numbers_between_two_go_to_the_nearest_and_ties_to_the_even() {
        // Neighbouring positive finite numbers of each type; in double their middle is exact.
        let halves = (0..0x7bffu16).map(|b| (F16(b).to_f32(), F16(b + 1).to_f32(), b));
        for (low, high, bits) in halves {
            let middle = (f64::from(low) + f64::from(high)) / 2.0;
            let even = if bits & 1 == 0 { low } else { high };
            assert_eq!(F16::from_f32(middle as f32).to_f32(), even, "{middle}");
            let above = f32::from_bits((middle as f32).to_bits() + 1);
            assert_eq!(F16::from_f32(above).to_f32(), high, "{above}");
        }
        assert_eq!(F16::from_f32(65519.0).to_f32(), 65504.0);
        assert_eq!(F16::from_f32(65520.0).to_f32(), f32::INFINITY);
        assert_eq!(Bf16::from_f32(f32::MAX).to_f32(), f32::INFINITY);
        assert_eq!(F16::from_f32(-1e-9).0, 0x8000);
    }
}
