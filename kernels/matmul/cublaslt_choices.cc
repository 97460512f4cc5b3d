#include "kernels/matmul/cublaslt_choices.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <type_traits>

#include "base/error.h"
#include "base/log.h"

namespace ds::kernels {
namespace cublaslt {
namespace {

constexpr size_t kMostPlans = 8192;
constexpr int kTimedProposals = 8;

// A handle for each GPU; null where cuBLASLt does not start. CUDA may be gone before the process
// ends, so they are never destroyed.
cublasLtHandle_t handle_of(const Library& lib, int gpu) {
  struct Handles {
    std::mutex mutex;
    std::map<int, cublasLtHandle_t> of;
  };
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static Handles& all = *new Handles;
  const std::lock_guard lock(all.mutex);
  const auto [at, fresh] = all.of.try_emplace(gpu, nullptr);
  if (!fresh) return at->second;
  const cublasStatus_t status = lib.create(&at->second);
  if (status != CUBLAS_STATUS_SUCCESS) {
    at->second = nullptr;
    log_warning("cuda", lib.name, " does not start on cuda:", gpu, ": ", lib.text(status),
                "; matrix products there have kernels of our own");
  }
  return at->second;
}

// ---- choices as bytes ----

constexpr uint64_t kMagic = 0x31434F5250534421u;  // and the layout of what follows

// What choices hold for: the same cuBLASLt on the same kind of GPU.
struct Kind {
  uint64_t magic = kMagic;
  uint64_t library = 0;
  int64_t capability = 0;
  char gpu[256] = {};
};
struct Entry {
  Key::Numbers key{};
  int64_t index = 0;
  int64_t workspace = 0;
};
static_assert(std::is_trivially_copyable_v<Kind> && std::is_trivially_copyable_v<Entry>);
static_assert(sizeof(Kind) % 8 == 0 && sizeof(Entry) == 26 * 8, "no bytes that nobody writes");

Kind kind_of(const Library& lib, int gpu) {
  cudaDeviceProp properties{};
  const cudaError_t status = cudaGetDeviceProperties(&properties, gpu);
  DS_CHECK(status == cudaSuccess, Code::kDevice, "CUDA: asking what cuda:", gpu,
           " is failed: ", cudaGetErrorName(status));
  Kind kind;
  kind.library = lib.version();
  kind.capability = int64_t{properties.major} * 10 + properties.minor;
  const std::string_view name(properties.name);
  std::memcpy(kind.gpu, name.data(), std::min(name.size(), sizeof kind.gpu - 1));
  return kind;
}

// Why choices of `theirs` are not for `ours`; "" when they are.
std::string why_not(const Kind& theirs, const Kind& ours) {
  if (theirs.magic != kMagic) return "they are not choices of this version";
  if (theirs.library != ours.library) {
    return str_cat("they are of cuBLASLt ", theirs.library, ", and here it is ", ours.library);
  }
  if (theirs.capability != ours.capability ||
      std::memcmp(theirs.gpu, ours.gpu, sizeof ours.gpu) != 0) {
    return str_cat("they are of another kind of GPU, and here it is ", ours.gpu);
  }
  return "";
}

// For a heuristic, which reads no operand: addresses that are aligned as the key says.
Form form_without_operands(const Key& key) {
  const auto at = [](uint32_t alignment) {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(alignment));
  };
  Form form;
  form.key = key;
  form.vector = at(key.alignment[4]);
  form.aux = at(key.alignment[5]);
  form.a_scale = form.b_scale = static_cast<const float*>(at(256));
  return form;
}

}  // namespace

// ---- plans ----

Plans::Found Plans::find(Form& form, int64_t workspace) {
  form.key.workspace = workspace;
  const std::lock_guard lock(mutex_);
  const bool timing = !open_.empty() && open_.count(form.key.gpu) != 0;
  if (const auto known = plans_.find(form.key); known != plans_.end()) {
    return {known->second, timing};
  }
  const Library& lib = library();
  const cublasLtHandle_t handle = handle_of(lib, form.key.gpu);
  if (handle == nullptr) return {};
  auto plan = std::make_shared<Plan>(lib, handle, form, proposals_);
  make_room();
  if (plans_.size() < kMostPlans) plans_.emplace(form.key, plan);
  return {std::move(plan), timing};
}

// What was timed stays: other ranks have chosen the same.
void Plans::make_room() {
  if (plans_.size() < kMostPlans) return;
  std::erase_if(plans_, [](const auto& entry) { return !entry.second->timed(); });
}

void Plans::set_open(int gpu, bool open) {
  const std::lock_guard lock(mutex_);
  if (open) {
    open_.insert(gpu);
  } else {
    open_.erase(gpu);
  }
}

int64_t Plans::timed(int gpu) const {
  const std::lock_guard lock(mutex_);
  return std::count_if(plans_.begin(), plans_.end(), [gpu](const auto& entry) {
    return entry.first.gpu == gpu && entry.second->timed();
  });
}

void Plans::forget(int gpu) {
  const std::lock_guard lock(mutex_);
  std::erase_if(plans_, [gpu](const auto& entry) { return entry.first.gpu == gpu; });
}

std::vector<std::byte> Plans::exported(int gpu) const {
  const Library& lib = library();
  if (!lib.usable()) return {};
  std::vector<Entry> entries;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, plan] : plans_) {
      if (key.gpu != gpu || !plan->timed() || !plan->usable()) continue;
      const Plan::Choice choice = plan->choice();
      entries.push_back({key.numbers(), choice.index, choice.workspace});
    }
  }
  // Bytes that do not depend on how the table hashes.
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.key < b.key; });
  const Kind kind = kind_of(lib, gpu);
  std::vector<std::byte> bytes(sizeof kind + entries.size() * sizeof(Entry));
  std::memcpy(bytes.data(), &kind, sizeof kind);
  if (!entries.empty()) {
    std::memcpy(bytes.data() + sizeof kind, entries.data(), entries.size() * sizeof(Entry));
  }
  return bytes;
}

// Algorithms are bytes that only cuBLASLt understands, and these come from elsewhere: so they name
// an algorithm by its place among the proposals, which the same cuBLASLt makes here again.
std::string Plans::import(std::span<const std::byte> bytes, int gpu) {
  const Library& lib = library();
  if (bytes.empty()) return lib.usable() ? "there cuBLASLt is not used" : "";
  if (!lib.usable()) return str_cat("here cuBLASLt is not used: ", lib.reason);
  Kind theirs;
  if (bytes.size() < sizeof theirs || (bytes.size() - sizeof theirs) % sizeof(Entry) != 0 ||
      (bytes.size() - sizeof theirs) / sizeof(Entry) > kMostPlans) {
    return str_cat(bytes.size(), " bytes are no choices");
  }
  std::memcpy(&theirs, bytes.data(), sizeof theirs);
  if (std::string why = why_not(theirs, kind_of(lib, gpu)); !why.empty()) return why;
  const cublasLtHandle_t handle = handle_of(lib, gpu);
  decltype(plans_) made;
  for (size_t at = sizeof theirs; at < bytes.size(); at += sizeof(Entry)) {
    Entry entry;
    std::memcpy(&entry, bytes.data() + at, sizeof entry);
    const std::optional<Key> key = Key::from(entry.key, gpu);
    if (!key) return "one of them is of no product";
    if (handle == nullptr) return str_cat("cuBLASLt does not start on cuda:", gpu);
    auto plan = std::make_shared<Plan>(lib, handle, form_without_operands(*key), proposals_);
    if (!plan->choose(entry.index, entry.workspace)) {
      return str_cat("cuBLASLt does not propose here what was chosen for ", key->text());
    }
    if (!made.emplace(*key, std::move(plan)).second) return "two of them are of one form";
  }
  const std::lock_guard lock(mutex_);
  for (auto& [key, plan] : made) plans_.insert_or_assign(key, std::move(plan));
  return "";
}

namespace {

Plans& timed_plans() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static Plans& it = *new Plans(kTimedProposals);
  return it;
}

}  // namespace

Plans& plans_of(const GpuStream& on) {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static Plans& plain = *new Plans(1);
  return on.policy.time_products ? timed_plans() : plain;
}

}  // namespace cublaslt

void open_timing(const GpuStream& on) { cublaslt::timed_plans().set_open(on.gpu, true); }

void close_timing(const GpuStream& on) { cublaslt::timed_plans().set_open(on.gpu, false); }

int64_t timed_products(const GpuStream& on) { return cublaslt::timed_plans().timed(on.gpu); }

void forget_timed_products(const GpuStream& on) { cublaslt::timed_plans().forget(on.gpu); }

std::vector<std::byte> export_timed_products(const GpuStream& on) {
  return cublaslt::timed_plans().exported(on.gpu);
}

std::string import_timed_products(std::span<const std::byte> bytes, const GpuStream& on) {
  return cublaslt::timed_plans().import(bytes, on.gpu);
}

}  // namespace ds::kernels
