// Included at the head of every instrumented source: one build holds all mutants, and the
// environment chooses the one that is on. DS_MUTANT=N turns mutant N on; DS_MUTANT_TRACE=FILE
// appends the number of every mutant that was reached, at once, so that a process that is killed is
// traced too.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace ds::mutation {

inline int chosen() {
  static const int id = [] {
    const char* text = std::getenv("DS_MUTANT");
    return text ? std::atoi(text) : -1;
  }();
  return id;
}

inline int trace_file() {
  static const int file = [] {
    const char* path = std::getenv("DS_MUTANT_TRACE");
    return path ? ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
  }();
  return file;
}

inline constexpr int kMost = 1 << 14;
inline std::array<std::atomic<bool>, kMost> reached{};

inline bool on(int id) {
  if (trace_file() >= 0 && !reached[static_cast<size_t>(id)].exchange(true)) {
    const std::int32_t number = id;
    // A test may have forbidden to write files meanwhile: it is tried again the next time.
    if (::write(trace_file(), &number, sizeof number) < 0) reached[static_cast<size_t>(id)] = false;
  }
  return id == chosen();
}

}  // namespace ds::mutation
