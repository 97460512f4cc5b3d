// Memory that a program lent for parameters: each new value of one is written there, in the type
// that the memory has.
#pragma once

#include <utility>
#include <vector>

#include "nn/parameter.h"
#include "ops/context.h"

namespace ds::nn {

class BorrowedMemory {
 public:
  explicit BorrowedMemory(const ParameterSet& parameters) : parameters_(&parameters) {}

  // Packed, of the parameter's shape.
  void add(ParamId id, Tensor memory);
  bool has(ParamId id) const;
  bool empty() const { return entries_.empty(); }

  // Nothing where none was borrowed for this parameter.
  void write(const OpContext& ctx, ParamId id, const Tensor& value) const;
  // All of them: `value_of(id)` is a parameter's value.
  template <class ValueOf>
  void write_all(const OpContext& ctx, const ValueOf& value_of) const {
    for (const auto& [id, memory] : entries_) write_to(ctx, value_of(id), memory);
  }

 private:
  static void write_to(const OpContext& ctx, const Tensor& value, Tensor memory);

  const ParameterSet* parameters_;
  std::vector<std::pair<ParamId, Tensor>> entries_;
};

}  // namespace ds::nn
