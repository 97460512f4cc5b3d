// How fast a machine is at what a step of training consists of, measured in a second or so, or as
// somebody says.
#pragma once

#include <map>

#include "base/json.h"
#include "base/thread_pool.h"
#include "engine/plan_context.h"
#include "engine/plan_timing.h"

namespace ds {

// Per second.
struct PlanRates {
  double product_flops = 0;                // of matrix products in the compute type, of many rows
  double pass_flops = 0;                   // of these in passes, other operators between them
  double memory_bytes = 0;                 // read and written by an update
  double gpu_memory_bytes = 0;             // the same by a GPU; 0: there is none
  double read_bytes = 0, write_bytes = 0;  // of the disk with state; 0: there is none
  double near_bytes = 0, far_bytes = 0;    // a rank sends within its node, and across nodes

  Json to_json() const;
};

class RateMeter {
 public:
  // `given` has rates by the names of PlanRates, which are not measured.
  RateMeter(Json given, ThreadPool& pool) : given_(std::move(given)), pool_(pool) {}

  // Of a model's layers, products of so many rows; measured once for each number of rows.
  double product_flops(const PlanContext& plan, int64_t rows);
  // Floating-point operations of products in a token's forward pass: of all blocks, and of what
  // stands around them.
  struct Flops {
    double blocks = 0;
    double rest = 0;
  };
  // Of passes of so many samples. Where no pass can be timed, or `product_flops` is given, that of
  // products.
  double pass_flops(const PlanContext& plan, int64_t samples, const Flops& token);
  double memory_bytes();
  double gpu_memory_bytes() const;
  // Writes and reads a file without a name in a folder.
  void measure_disk(const PlanContext& plan, const std::string& folder);
  double read_bytes() const { return read_; }
  double write_bytes() const { return write_; }
  double near_bytes();
  double far_bytes() const;

 private:
  double given(const char* name) const;  // 0: not given

  const Json given_;
  ThreadPool& pool_;
  std::map<int64_t, double> products_;
  std::map<int64_t, std::optional<PassSeconds>> passes_;  // by tokens
  double memory_ = 0, read_ = 0, write_ = 0;
};

}  // namespace ds
