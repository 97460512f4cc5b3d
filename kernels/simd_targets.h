// The instruction sets that kernels are compiled for: AVX-512, AVX2 and a portable fallback.
// Include first in every Highway source file, before <hwy/foreach_target.h>.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)

// The fallback is the 128-bit emulation. Highway avoids it before GCC 12.3, which miscompiles high
// halves of 16-bit products; kernels use none, and the tests run on the fallback too. The other
// choice would be vectors of one lane, which lack half of the operations.
#define HWY_BROKEN_EMU128 0
