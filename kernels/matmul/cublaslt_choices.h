// The plans of products by their forms: one table where the first proposal counts, and one where
// proposals may be timed.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include "kernels/matmul/cublaslt_plan.h"
#include "kernels/matmul/product_choices.h"

namespace ds::kernels::cublaslt {

class Plans {
 public:
  // `proposals`: how many a plan asks for.
  explicit Plans(int proposals) : proposals_(proposals) {}

  struct Found {
    std::shared_ptr<Plan> plan;  // null where cuBLASLt does not start on the GPU
    bool timing = false;         // products time what is proposed
  };
  // The plan for the form with up to so much scratch. The GPU is current, here and below.
  Found find(Form& form, int64_t workspace);

  void set_open(int gpu, bool open);
  int64_t timed(int gpu) const;
  void forget(int gpu);
  std::vector<std::byte> exported(int gpu) const;
  std::string import(std::span<const std::byte> bytes, int gpu);

 private:
  void make_room();

  const int proposals_;
  mutable std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<Plan>, KeyHash> plans_;
  std::set<int> open_;  // GPUs
};

// Those of the policy.
Plans& plans_of(const GpuStream& on);

}  // namespace ds::kernels::cublaslt
