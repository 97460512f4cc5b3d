#include "io/backend.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace ds::io {
namespace {

constexpr std::array kNames = {
    std::pair{BackendKind::kBest, std::string_view("auto")},
    std::pair{BackendKind::kUring, std::string_view("io_uring")},
    std::pair{BackendKind::kLibaio, std::string_view("libaio")},
    std::pair{BackendKind::kThreads, std::string_view("threads")},
};

std::unique_ptr<Backend> try_backend(BackendKind kind, int depth, std::string& reason) {
  return kind == BackendKind::kUring ? make_uring(depth, reason) : make_libaio(depth, reason);
}

}  // namespace

std::string_view backend_name(BackendKind kind) {
  for (const auto& [known, name] : kNames) {
    if (known == kind) return name;
  }
  return "unknown";
}

std::optional<BackendKind> backend_of_name(std::string_view name) {
  for (const auto& [kind, known] : kNames) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

std::unique_ptr<Backend> make_async_backend(BackendKind kind, int depth) {
  std::string reason;
  std::unique_ptr<Backend> made = try_backend(kind, depth, reason);
  DS_CHECK(made != nullptr, Code::kUnsupported, "file I/O by ", backend_name(kind),
           " is not possible here: ", reason);
  return made;
}

std::unique_ptr<Backend> make_best_backend(int depth) {
  std::string reason;
  for (const BackendKind kind : {BackendKind::kUring, BackendKind::kLibaio}) {
    if (std::unique_ptr<Backend> made = try_backend(kind, depth, reason)) return made;
  }
  return nullptr;
}

std::string backend_refusal(BackendKind kind) {
  std::string reason;
  const bool asynchronous = kind == BackendKind::kUring || kind == BackendKind::kLibaio;
  if (!asynchronous || try_backend(kind, 1, reason) != nullptr) return "";
  return reason;
}

}  // namespace ds::io
