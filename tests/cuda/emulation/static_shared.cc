// How much shared memory a kernel declares. Such variables are thread-local statics of the kernel
// here, so the table of symbols of the program has their sizes: `_ZZ<kernel>E<variable>` belongs to
// `_Z<kernel>`. Those of functions that a kernel calls are not found; kernels whose launches add
// dynamic memory declare theirs themselves.
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cuda/emulation/stand_in_world.h"

namespace ds::testing::stand_in {
namespace {

constexpr size_t kPlain = 48 << 10;  // of a block, with what its kernel declares
constexpr size_t kMost = 227 << 10;  // if the kernel was allowed it
constexpr size_t kAlign = 128;       // of what a launch adds, behind what is declared

struct Symbol {
  size_t file;  // whose local symbol it is; 0: of the whole program
  std::string_view name;
  uint64_t value, size;
  bool operator<(const Symbol& other) const {
    return file != other.file ? file < other.file : name < other.name;
  }
};

struct Symbols {
  std::vector<Symbol> functions, variables;
};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}

// Where the program lies in memory.
uint64_t load_address() {
  uint64_t found = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        *static_cast<uint64_t*>(to) = info->dlpi_addr;
        return 1;  // the first is the program
      },
      &found);
  return found;
}

void read_table(const char* file, const Elf64_Shdr& table, const Elf64_Shdr& texts, Symbols& out) {
  const auto* const symbols = reinterpret_cast<const Elf64_Sym*>(file + table.sh_offset);
  size_t source = 0;
  for (size_t i = 0; i < table.sh_size / sizeof(Elf64_Sym); ++i) {
    const Elf64_Sym& symbol = symbols[i];
    const int type = ELF64_ST_TYPE(symbol.st_info);
    const bool local = ELF64_ST_BIND(symbol.st_info) == STB_LOCAL;
    if (type == STT_FILE) ++source;
    const std::string_view name = file + texts.sh_offset + symbol.st_name;
    const Symbol found{local ? source : 0, name, symbol.st_value, symbol.st_size};
    if (type == STT_FUNC && name.starts_with("_Z")) out.functions.push_back(found);
    if (type == STT_TLS && name.starts_with("_ZZ")) out.variables.push_back(found);
  }
}

Symbols read_symbols() {
  const int handle = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  struct stat about {};
  if (handle < 0 || ::fstat(handle, &about) != 0) die("cannot read its own program");
  const auto size = static_cast<size_t>(about.st_size);
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, handle, 0);  // and stays
  ::close(handle);
  if (mapped == MAP_FAILED) die("cannot read its own program");
  const auto* const file = static_cast<const char*>(mapped);
  const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(file);
  const auto* const sections = reinterpret_cast<const Elf64_Shdr*>(file + header->e_shoff);
  Symbols out;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    read_table(file, sections[i], sections[sections[i].sh_link], out);
  }
  if (out.functions.empty()) die("its program was stripped: shared memory cannot be counted");
  std::sort(out.variables.begin(), out.variables.end());
  return out;
}

size_t declared(const std::vector<Symbol>& variables, const Symbol& kernel) {
  const std::string prefix = "_ZZ" + std::string(kernel.name.substr(2)) + "E";
  size_t total = 0;
  for (auto it =
           std::lower_bound(variables.begin(), variables.end(), Symbol{kernel.file, prefix, 0, 0});
       it != variables.end() && it->file == kernel.file && it->name.starts_with(prefix); ++it) {
    total += it->size;
  }
  return total;
}

std::unordered_map<const void*, size_t> count_all() {
  const Symbols symbols = read_symbols();
  const uint64_t base = load_address();
  std::unordered_map<const void*, size_t> out;
  for (const Symbol& kernel : symbols.functions) {
    size_t& bytes = out[reinterpret_cast<const void*>(base + kernel.value)];
    bytes = std::max(bytes, declared(symbols.variables, kernel));
  }
  return out;
}

size_t aligned_shared(const void* kernel) {
  return (static_shared(kernel) + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

size_t static_shared(const void* kernel) {
  static const std::unordered_map<const void*, size_t> all = count_all();
  const auto found = all.find(kernel);
  if (found == all.end()) die("a kernel is launched that is no function of the program");
  return found->second;
}

size_t most_dynamic_shared(const void* kernel) {
  const size_t own = aligned_shared(kernel);
  const Lock lock(world().mutex);
  const auto allowed = world().dynamic_shared.find({gpu_of("cudaLaunchKernel"), kernel});
  if (allowed != world().dynamic_shared.end()) return allowed->second;  // even if it is less
  return own < kPlain ? kPlain - own : 0;
}

}  // namespace ds::testing::stand_in

using namespace ds::testing::stand_in;  // NOLINT: the calls are the stand-in's

extern "C" {

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void* kernel) {
  STAND_IN_BEGIN(cudaFuncGetAttributes);
  found->sharedSizeBytes = static_shared(kernel);
  found->maxDynamicSharedSizeBytes = static_cast<int>(most_dynamic_shared(kernel));
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  STAND_IN_BEGIN(cudaFuncSetAttribute);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      aligned_shared(kernel) + static_cast<size_t>(value) > kMost) {
    return done(cudaErrorInvalidValue);
  }
  world().dynamic_shared[{gpu, kernel}] = static_cast<size_t>(value);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin) return done(cudaErrorInvalidValue);
  *value = static_cast<int>(kMost);
  return cudaSuccess;
}

}  // extern "C"
