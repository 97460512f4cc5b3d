// Weights of inference that rest in a file and are read where they are used (ZeRO-Inference,
// Aminabadi et al., arXiv:2207.00032): ahead of that, once the order in which they are used is
// known. Those of experts, of which each token takes others, are read where tokens have chosen
// them, and the ones used last stay in memory.
#pragma once

#include <deque>
#include <filesystem>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "tensor/array_store.h"

namespace ds::models {

struct WeightFileOptions {
  std::filesystem::path folder;
  int64_t elements_in_memory = 0;  // of matrices: the first ones, then experts used last
  int64_t elements_ahead = 0;      // that are read before they are asked for, at most
};

// What was read of a file of weights since it was made.
struct WeightReads {
  int64_t bytes = 0;
  int64_t expert_uses = 0;  // how often a matrix of an expert was held, ...
  int64_t expert_hits = 0;  // ... and was in memory
};

// One thread at a time uses it.
class WeightFile {
 public:
  using Entry = size_t;

  // Room for so many bytes, in a file without a name. `device` is the CPU, whose account counts the
  // memory that weights are read into.
  WeightFile(const WeightFileOptions& options, std::shared_ptr<Device> device, int64_t bytes);

  // Packed tensors that are used together, of a matrix of so many elements: in the same order in
  // each pass, or as a group of them is expected, which keep_recent made.
  Entry put(const std::vector<Tensor>& tensors, int64_t elements, std::optional<size_t> group = {});
  // Of each group so many elements stay in memory after their use, those that were used last.
  void keep_recent(const std::vector<int64_t>& elements);

  // The tensors, until the matching release.
  const std::vector<Tensor>& hold(Entry entry);
  void release(Entry entry) noexcept;
  // Entries of a group will be held next, in this order: they are read ahead.
  void expect(std::span<const Entry> entries);

  const WeightReads& reads() const { return reads_; }

 private:
  struct Part {
    int64_t offset;  // in the entry
    DType dtype;
    Shape shape;
  };
  struct Stored {
    int64_t begin, end;
    std::vector<Part> parts;
    int64_t elements;  // of the matrix
    std::optional<size_t> group;
    int users = 0;
    bool fetched = false;  // asked for, and not held since
    ArrayLease lease;
    std::vector<Tensor> tensors;  // in the lease
  };
  // Entries of a group that stay in memory though nobody holds them, the last one used first.
  struct Recent {
    int64_t room = 0, elements = 0;
    std::list<Entry> entries = {};
  };
  // Which entry follows another depends on what was used before that: a matrix may be used twice.
  struct Pair {
    Entry before, last;
    bool operator==(const Pair&) const = default;
  };
  struct PairHash {
    size_t operator()(const Pair& pair) const noexcept { return pair.before * 1000003 + pair.last; }
  };

  static int64_t bytes_of(const std::vector<Tensor>& tensors);
  static void free(Stored& stored) noexcept;
  void fetch(Stored& stored);
  void read_ahead();
  void read_expected();

  int64_t elements_ahead_;  // in order, and as many that are expected where there are groups
  StoredArray array_;       // of bytes
  int64_t end_ = 0;         // of what was put
  std::vector<Stored> stored_;
  std::vector<Recent> recent_;  // by group
  std::deque<Entry> expected_;  // not held yet, in their order
  int64_t expected_ahead_ = 0;  // elements of those that were asked for
  WeightReads reads_;
  std::unordered_map<Pair, Entry, PairHash> next_;
  Pair used_{0, 0};
};

}  // namespace ds::models
