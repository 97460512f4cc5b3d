#include "capi/cpu_features.h"

#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ds::capi {

bool CpuFeatures::has(std::string_view name) const {
  for (const CpuFeature& feature : features) {
    if (feature.name == name) return feature.usable;
  }
  return false;
}

#if defined(__x86_64__)
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

// The register file states that the operating system saves: without it a feature is unusable.
uint64_t enabled_states() {
  constexpr uint32_t kOsXsave = 1u << 27;
  if ((cpuid(1, 0).ecx & kOsXsave) == 0) return 0;
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

std::string brand() {
  std::array<char, 49> text{};
  for (uint32_t i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002u + i, 0);
    std::memcpy(text.data() + size_t{16} * i, &r, 16);
  }
  std::string name(text.data());
  const size_t begin = name.find_first_not_of(' ');
  if (begin == std::string::npos) return "unknown x86-64 processor";
  return name.substr(begin, name.find_last_not_of(' ') - begin + 1);
}

}  // namespace

CpuFeatures cpu_features() {
  const uint64_t states = enabled_states();
  const bool ymm = (states & 0x6) == 0x6;
  const bool zmm = (states & 0xE6) == 0xE6;
  const bool tiles = (states & 0x60000) == 0x60000;
  const Registers one = cpuid(1, 0);
  const Registers seven = cpuid(7, 0);
  const Registers seven_one = cpuid(7, 1);
  const auto bit = [](uint32_t word, int index) { return ((word >> index) & 1u) != 0; };
  return {brand(),
          {{"sse4_2", bit(one.ecx, 20)},
           {"avx", ymm && bit(one.ecx, 28)},
           {"f16c", ymm && bit(one.ecx, 29)},
           {"fma", ymm && bit(one.ecx, 12)},
           {"avx2", ymm && bit(seven.ebx, 5)},
           {"bmi2", bit(seven.ebx, 8)},
           {"avx_vnni", ymm && bit(seven_one.eax, 4)},
           {"avx512f", zmm && bit(seven.ebx, 16)},
           {"avx512dq", zmm && bit(seven.ebx, 17)},
           {"avx512cd", zmm && bit(seven.ebx, 28)},
           {"avx512bw", zmm && bit(seven.ebx, 30)},
           {"avx512vl", zmm && bit(seven.ebx, 31)},
           {"avx512_vnni", zmm && bit(seven.ecx, 11)},
           {"avx512_bf16", zmm && bit(seven_one.eax, 5)},
           {"avx512_fp16", zmm && bit(seven.edx, 23)},
           {"amx_tile", tiles && bit(seven.edx, 24)},
           {"amx_int8", tiles && bit(seven.edx, 25)},
           {"amx_bf16", tiles && bit(seven.edx, 22)}}};
}

#else

CpuFeatures cpu_features() { return {"unknown processor", {}}; }

#endif

}  // namespace ds::capi
