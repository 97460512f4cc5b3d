// What this CPU offers beyond the vector targets that Highway chooses among: bf16 and int8 dot
// products, and AMX tiles.
#pragma once

#include <cstdint>

namespace ds::kernels {

struct CpuFeatures {
  bool avx2 = false;         // with FMA
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // VDPBF16PS and conversions
  bool avx512_vnni = false;  // VPDPBUSD
  // Tiles usable: the system granted their state to this process.
  bool amx_bf16 = false, amx_int8 = false;
};

// Asked once. Linux gives a process tile state on request only; the first call requests it, and
// a refusal (an old kernel, a small alternate signal stack, a sandbox) means "no AMX".
const CpuFeatures& cpu_features();

// The vector targets that Highway may choose among (hwy::SupportedTargets), asked once as well:
// Highway asks the processor each time, and in a virtual machine that takes as long as a small
// operator. Tests that choose targets have them asked again, while nothing else runs.
int64_t vector_targets();
void ask_for_vector_targets();

// Whether AVX-512 kernels may use conversions to bf16, for inner loops: one load. False until the
// library is initialised.
extern const bool kHasBf16Conversion;

// Configures all eight tiles for this thread: 0 to 3 as sums, 16 rows of 64 bytes, 4 and 5 as left
// operands, 16 rows of `row_bytes`, 6 and 7 as right ones, row_bytes / 4 rows of 64 bytes. Released
// in the destructor, because a thread that keeps tiles in use makes every context switch save
// 8 KiB. Only where amx_bf16 or amx_int8 is set.
class AmxTiles {
 public:
  explicit AmxTiles(int64_t row_bytes = 64) noexcept;
  ~AmxTiles();
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
};

}  // namespace ds::kernels
