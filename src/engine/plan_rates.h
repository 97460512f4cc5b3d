// How fast a machine is at what a step of training consists of, measured in a second or so, or as
// somebody says.
#pragma once

#include <map>

#include "base/json.h"
#include "base/thread_pool.h"
#include "engine/plan_context.h"

namespace ds {

// Per second.
struct PlanRates {
  double product_flops = 0;                // of matrix products in the compute type, of many rows
  double memory_bytes = 0;                 // read and written by an update
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
  double memory_bytes();
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
  double memory_ = 0, read_ = 0, write_ = 0;
};

}  // namespace ds
