#include "kernels/cpu.h"

#include <cpuid.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

#include <hwy/targets.h>

#include "kernels/amx_instructions.h"

namespace ds::kernels {
namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): of the processor
std::atomic<int64_t> known_targets{0};  // 0: not asked yet

// Linux's arch_prctl: asks for the state component of the tiles' data.
bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// A larger alternate signal stack for this thread in place of one of the size that was enough
// before there were tiles, 8 KiB. It has a guard page and stays for the life of the process.
// Whoever made the small one still owns it.
bool enlarge_signal_stack() {
  stack_t now = {};
  if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & (SS_DISABLE | SS_ONSTACK)) != 0) {
    return false;
  }
  constexpr size_t kGuard = 4096, kBytes = 64 * 1024;
  if (now.ss_size >= kBytes) return false;
  void* const memory = mmap(nullptr, kGuard + kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  stack_t larger = {};
  larger.ss_sp = static_cast<std::byte*>(memory) + kGuard;
  larger.ss_size = kBytes;
  if (mprotect(memory, kGuard, PROT_NONE) != 0 || sigaltstack(&larger, nullptr) != 0) {
    munmap(memory, kGuard + kBytes);
    return false;
  }
  return true;
}

// Linux says ENOSPC while the alternate signal stack of some thread could not hold the tiles, such
// as the one that the runtime of Rust 1.63 gives its main thread.
bool request_tiles() {
  if (ask_for_tiles()) return true;
  return errno == ENOSPC && enlarge_signal_stack() && ask_for_tiles();
}

CpuFeatures detect() {
  CpuFeatures f;
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  f.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!f.avx512) return f;
  f.avx512_bf16 = __builtin_cpu_supports("avx512bf16");
  f.avx512_vnni = __builtin_cpu_supports("avx512vnni");
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return f;
  const auto bit = [edx](int index) { return (edx >> index & 1u) != 0; };
  const bool tiles = bit(24) && f.avx512_bf16 && f.avx512_vnni && request_tiles();
  f.amx_bf16 = tiles && bit(22);
  f.amx_int8 = tiles && bit(25);
  return f;
}

}  // namespace

int64_t vector_targets() {
  const int64_t known = known_targets.load(std::memory_order_relaxed);
  if (known != 0) return known;
  ask_for_vector_targets();
  return known_targets.load(std::memory_order_relaxed);
}

void ask_for_vector_targets() {
  known_targets.store(hwy::SupportedTargets(), std::memory_order_relaxed);
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

// Not of cpu_features(): loading the library asks the system for no tiles.
const bool kHasBf16Conversion = (__builtin_cpu_init(), __builtin_cpu_supports("avx512bf16") != 0);

AmxTiles::AmxTiles(int64_t row_bytes) noexcept {
  struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } shapes;
  static_assert(sizeof(Shapes) == 64);
  for (int tile = 0; tile < 8; ++tile) {
    const bool left = tile == 4 || tile == 5, right = tile >= 6;
    shapes.row_bytes[tile] = left ? static_cast<uint16_t>(row_bytes) : uint16_t{64};
    shapes.rows[tile] = right ? static_cast<uint8_t>(row_bytes / 4) : uint8_t{16};
  }
  amx::configure(&shapes);
}
AmxTiles::~AmxTiles() { amx::release(); }

}  // namespace ds::kernels
