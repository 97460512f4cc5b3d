// Tile instructions (AMX); as assembly, so that no compiler moves memory accesses across them, and
// so that tile numbers may be template arguments. gcc takes assembly for more code than it is, and
// would not inline it by itself. For threads that have AmxTiles. A test puts a program's own tiles
// in the place of this file (tests/kernels/amx_stand_in).
#pragma once

#include <cstdint>

namespace ds::kernels::amx {

// Takes the shapes of all tiles, 64 bytes as the instruction reads them.
inline __attribute__((always_inline)) void configure(const void* shapes) {
  using Shapes = uint8_t[64];
  __asm__ volatile("ldtilecfg %0" : : "m"(*static_cast<const Shapes*>(shapes)));
}
inline __attribute__((always_inline)) void release() { __asm__ volatile("tilerelease"); }

template <int kTile>
inline __attribute__((always_inline)) void zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// Rows `stride` bytes apart.
template <int kTile>
inline __attribute__((always_inline)) void load(const void* from, int64_t stride = 64) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(from), "r"(stride), "i"(kTile)
                   : "memory");
}
// The same, of what is read once and should not take the place of other lines.
template <int kTile>
inline __attribute__((always_inline)) void load_once(const void* from, int64_t stride = 64) {
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(from), "r"(stride), "i"(kTile)
                   : "memory");
}
template <int kTile>
inline __attribute__((always_inline)) void store(void* to, int64_t stride = 64) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                   :
                   : "r"(to), "r"(stride), "i"(kTile)
                   : "memory");
}

// Products of bf16, summed in fp32.
struct BFloat16Product {
  template <int kSum, int kLeft, int kRight>
  static inline __attribute__((always_inline)) void add() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
                     :
                     : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

// Products of signed 8-bit numbers, summed in 32 bits.
struct Int8Product {
  template <int kSum, int kLeft, int kRight>
  static inline __attribute__((always_inline)) void add() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

}  // namespace ds::kernels::amx
