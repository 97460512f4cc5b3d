// How operators of the tape report to a module profile. Without one all of this is a pointer test.
#pragma once

#include "nn/tape.h"

namespace ds::nn {

// Stands at the top of each layer function. An operator belongs to the module of its parameter; one
// without parameters to the module that encloses the operator before it.
class OperatorScope {
 public:
  // With `at_alias` the operator of a shared tensor belongs to the place that shares it: a tied
  // head is not part of the embedding.
  OperatorScope(Tape& tape, const char* name, ParamId parameter = kNoParam, bool at_alias = false)
      : tape_(tape.profile() == nullptr ? nullptr : &tape) {
    if (tape_ != nullptr) begin(name, parameter, at_alias);
  }
  ~OperatorScope() {
    if (tape_ != nullptr) end();
  }
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

  // Whether anybody wants to know the arithmetic.
  explicit operator bool() const { return tape_ != nullptr; }
  // Of this forward, and of the backward that is recorded within this scope.
  void work(const Arithmetic& forward, const Arithmetic& backward) const;

 private:
  void begin(const char* name, ParamId parameter, bool at_alias);
  void end() const noexcept;

  Tape* tape_;
};

// Pairs of query and key that attention multiplies in all sequences of a batch, after `causal`,
// `window`, key mask (uint8 [B, Tk] or empty) and segments (int32 [B, T] or empty).
struct VisiblePairs {
  int64_t batch = 0;
  int64_t queries = 0;
  int64_t keys = 0;
  bool causal = true;
  int64_t window = 0;
  Tensor key_mask;
  Tensor segments;
};
int64_t count_visible_pairs(const VisiblePairs& which);

}  // namespace ds::nn
