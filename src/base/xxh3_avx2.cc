#include "base/xxh3.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// Everything xxhash.h includes comes before the pragma: only its own functions, which are static,
// are compiled for AVX2.
#include <immintrin.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC push_options
#pragma GCC target("avx2")
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ds {
namespace {
uint64_t with_avx2(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }
}  // namespace
}  // namespace ds
#pragma GCC pop_options

namespace ds {
Xxh3Function xxh3_64_avx2() { return __builtin_cpu_supports("avx2") ? with_avx2 : nullptr; }
}  // namespace ds

#else

namespace ds {
Xxh3Function xxh3_64_avx2() { return nullptr; }
}  // namespace ds

#endif
