// A caller's array of tensors, entered for the length of a call: all in host memory and of one
// type.
#pragma once

#include <deque>
#include <string>

#include "capi/args.h"
#include "capi/tensor_object.h"

namespace ds::capi {

class TensorList {
 public:
  TensorList(ds_tensor* const* tensors, int64_t count, const char* name, Entry entry) {
    DS_CHECK(tensors != nullptr, Code::kInvalidArgument, name, " is NULL");
    DS_CHECK(count >= 1, Code::kInvalidArgument, "count is ", count, "; 1 or more is needed");
    for (int64_t i = 0; i < count; ++i) {
      const std::string where = str_cat(name, "[", i, "]");
      entered_.emplace_back(look_up(tensors[i], where.c_str()), entry, where.c_str());
      const DType type = host_tensor(*entered_.back(), where.c_str()).dtype();
      DS_CHECK(type == dtype(), Code::kInvalidArgument, where, " is ", dtype_name(type),
               ", the first one ", dtype_name(dtype()), "; one type is needed");
    }
  }
  size_t size() const { return entered_.size(); }
  const Tensor& operator[](size_t i) const { return entered_[i]->tensor; }
  DType dtype() const { return entered_.front()->tensor.dtype(); }
  int64_t elements() const {
    int64_t sum = 0;
    for (const auto& one : entered_) sum += one->tensor.elements();
    return sum;
  }

 private:
  std::deque<Entered<TensorObject>> entered_;
};

}  // namespace ds::capi
