//! The vector instructions that networks compute with.

use pulp::{Arch, Simd, WithSimd};

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// 512-bit vectors on x86-64.
    Avx512,
    /// 256-bit vectors with fused multiply-add on x86-64.
    Avx2,
    /// 128-bit vectors on 64-bit Arm.
    Neon,
    /// None in particular, for any processor.
    Portable,
}

impl Instructions {
    /// Those of this processor, the best first.
    pub fn available() -> Vec<Self> {
        let all = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];
        all.into_iter().filter(|instructions| instructions.find().is_some()).collect()
    }

    /// The best of this processor.
    pub fn detect() -> Self {
        Self::available()[0]
    }

    /// What dispatches to these instructions, or to the best ones where they are missing.
    pub(crate) fn arch(self) -> Arch {
        self.find().unwrap_or_default()
    }

    /// Runs code that is compiled for these instructions.
    pub fn dispatch<W: WithSimd>(self, work: W) -> W::Output {
        self.arch().dispatch(work)
    }

    #[cfg(target_arch = "x86_64")]
    fn find(self) -> Option<Arch> {
        match self {
            Self::Avx512 => pulp::x86::V4::try_new().map(Arch::V4),
            Self::Avx2 => pulp::x86::V3::try_new().map(Arch::V3),
            Self::Neon => None,
            Self::Portable => Some(Arch::Scalar),
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn find(self) -> Option<Arch> {
        match self {
            Self::Neon => pulp::aarch64::Neon::try_new().map(Arch::Neon),
            Self::Portable => Some(Arch::Scalar),
            Self::Avx512 | Self::Avx2 => None,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn find(self) -> Option<Arch> {
        (self == Self::Portable).then(Arch::default)
    }
}

impl std::fmt::Display for Instructions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Avx512 => "AVX-512",
            Self::Avx2 => "AVX2",
            Self::Neon => "NEON",
            Self::Portable => "portable",
        })
    }
}

/// Runs a loop over elements, compiled for these instructions. The closure must be `#[inline(always)]`: what is not
/// inlined is compiled for any processor.
#[inline(always)]
pub(crate) fn vectorize(arch: Arch, elements: impl FnMut()) {
    struct Elements<F>(F);

    impl<F: FnMut()> WithSimd for Elements<F> {
        type Output = ();

        // Not called as a `FnOnce`, for which there is a function in between that is not inlined.
        #[inline(always)]
        fn with_simd<S: Simd>(mut self, _: S) {
            (self.0)();
        }
    }

    arch.dispatch(Elements(elements));
}
