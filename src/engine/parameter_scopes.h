// Parameters that callers use and change: made whole for a program's own computation, or whole for
// a scope in which one rank may change them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/caller_pass.h"
#include "tensor/tensor.h"

namespace ds {

struct OpenStep;
struct RunContext;

class ParameterScopes {
 public:
  ParameterScopes(RunContext& run, const OpenStep& open) : run_(run), open_(open) {}

  // For a program that computes with parameters of its own: makes them whole, in the type that the
  // engine computes in, until they are released as often. Every rank asks for the same ones.
  std::vector<Tensor> fetch(std::span<const int64_t> indices);
  void release(std::span<const int64_t> indices);
  // Before the engine ends: what the caller did not release.
  void release_all();
  // Whole fp32 copies of parameters, which rank `modifier` may change: scatter writes its values
  // back on every rank, and nothing when that is -1. No step can be made meanwhile.
  std::vector<Tensor> gather(std::span<const int64_t> indices);
  void scatter(std::span<const int64_t> indices, int modifier);
  // Ends a gather on this rank alone, whose changes nobody wants.
  void forget_gathered(std::span<const int64_t> indices);

  bool fetched() const { return fetched_count_ > 0; }
  bool gathered() const { return gathered_count_ > 0; }
  bool holds_any() const { return fetched() || gathered(); }
  // Throws kState while a scope is open.
  void check_nothing_held(const char* what) const;
  // From here to the next forward nothing looks at weights but the update, which takes them as they
  // are then: they may change unless a scope holds some.
  void free_weights();

  CallerPass& pass() { return pass_; }

 private:
  std::vector<nn::ParamId> parameter_ids(std::span<const int64_t> indices, const char* what) const;
  void check_unchanged(std::span<const nn::ParamId> ids);
  void forget(nn::ParamId id);

  RunContext& run_;
  const OpenStep& open_;
  CallerPass pass_;
  std::vector<int> fetched_;             // by parameter: not released so many times yet
  int64_t fetched_count_ = 0;            // in all
  std::vector<Tensor> gathered_;         // by parameter, while it is; none else
  std::vector<uint64_t> gathered_sums_;  // their checksums, with enable_sanity_checks
  int64_t gathered_count_ = 0;
};

}  // namespace ds
