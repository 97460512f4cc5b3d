// ds/optimizer.hpp - The optimizer of an engine. Part of ds.hpp.
#ifndef DS_OPTIMIZER_HPP
#define DS_OPTIMIZER_HPP

#include <cstdint>
#include <string>
#include <vector>

#include "base.hpp"
#include "optimizer.h"
#include "tensor.hpp"

namespace libds {

// The optimizer of an engine; its calls fail once the engine has ended.
class Optimizer : public detail::Handle<ds_optimizer, ds_optimizer_destroy> {
 public:
  using Handle::Handle;

  ds_optimizer_info info() const {
    ds_optimizer_info out = DS_OPTIMIZER_INFO_INIT;
    check(ds_optimizer_describe(get(), &out));
    return out;
  }
  // Updates applied so far.
  int64_t steps() const { return info().steps; }
  double lr() const { return info().lr; }
  void set_lr(double lr) { check(ds_optimizer_set_lr(get(), lr)); }
  // Rates of the next step, the default group's first.
  std::vector<double> rates() const {
    std::vector<double> out(static_cast<size_t>(info().rate_count));
    for (size_t i = 0; i < out.size(); ++i) {
      check(ds_optimizer_rate(get(), static_cast<int64_t>(i), &out[i]));
    }
    return out;
  }
  // Names of a parameter's state tensors, as a JSON list.
  std::string state_names(int64_t parameter) const {
    char* out = nullptr;
    check(ds_optimizer_state_names(get(), parameter, &out));
    return detail::take(out);
  }
};

}  // namespace libds

#endif  // DS_OPTIMIZER_HPP
