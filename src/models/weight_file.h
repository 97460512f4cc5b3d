// Weights of inference that rest in a file and are read where they are used (ZeRO-Inference,
// Aminabadi et al., arXiv:2207.00032): ahead of that, once the order in which they are used is
// known.
#pragma once

#include <filesystem>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tensor/array_store.h"

namespace ds::models {

struct WeightFileOptions {
  std::filesystem::path folder;
  int64_t elements_in_memory = 0;  // of matrices, the first ones
  int64_t elements_ahead = 0;      // that are read before they are asked for, at most
};

// One thread at a time uses it.
class WeightFile {
 public:
  using Entry = size_t;

  // Room for so many bytes, in a file without a name. `device` is the CPU, whose account counts the
  // memory that weights are read into.
  WeightFile(const WeightFileOptions& options, std::shared_ptr<Device> device, int64_t bytes);

  // Packed tensors that are used together.
  Entry put(const std::vector<Tensor>& tensors);

  // The tensors, until the matching release.
  const std::vector<Tensor>& hold(Entry entry);
  void release(Entry entry) noexcept;

 private:
  struct Part {
    int64_t offset;  // in the entry
    DType dtype;
    Shape shape;
  };
  struct Stored {
    int64_t begin, end;
    std::vector<Part> parts;
    int64_t elements;  // of the first tensor
    int users = 0;
    ArrayLease lease;
    std::vector<Tensor> tensors;  // in the lease
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
  void read_ahead();

  const int64_t elements_ahead_;
  StoredArray array_;  // of bytes
  int64_t end_ = 0;    // of what was put
  std::vector<Stored> stored_;
  std::unordered_map<Pair, Entry, PairHash> next_;
  Pair used_{0, 0};
};

}  // namespace ds::models
