// ds/experts.hpp - Mixture of experts for programs with their own autograd. Part of ds.hpp.
#ifndef DS_EXPERTS_HPP
#define DS_EXPERTS_HPP

#include <cstdint>
#include <string>

#include "base.hpp"
#include "experts.h"
#include "tensor.hpp"

namespace libds {

// What the gate of a mixture of experts says of every token.
struct Gate {
  Tensor chosen;   // int32 [tokens, top_k]: experts, -1 for none
  Tensor weights;  // float32 [tokens, top_k]
  Tensor counts;   // int64 [3, experts]: chose, taken, counted by the balancing loss
  Tensor losses;   // float32 [2]: balancing loss, z-loss
};
// `bias` may be null; options are JSON, see ds_experts_gate.
inline Gate experts_gate(const Tensor& logits, const std::string& options = "{}",
                         const Tensor* bias = nullptr) {
  ds_tensor *chosen = nullptr, *weights = nullptr, *counts = nullptr, *losses = nullptr;
  check(ds_experts_gate(logits.get(), bias != nullptr ? bias->get() : nullptr, options.c_str(),
                        &chosen, &weights, &counts, &losses));
  return {Tensor(chosen), Tensor(weights), Tensor(counts), Tensor(losses)};
}
// By the gradients of weights and losses; either may be null.
inline Tensor experts_gate_backward(const Tensor& logits, const Gate& gate,
                                    const Tensor* weights_gradient, const Tensor* losses_gradient,
                                    const std::string& options = "{}") {
  const auto handle = [](const Tensor* tensor) {
    return tensor != nullptr ? tensor->get() : nullptr;
  };
  ds_tensor* out = nullptr;
  check(ds_experts_gate_backward(logits.get(), gate.chosen.get(), gate.counts.get(),
                                 options.c_str(), handle(weights_gradient), handle(losses_gradient),
                                 &out));
  return Tensor(out);
}
// Routes sorted by expert.
struct SortedRoutes {
  Tensor offsets;  // int32 [experts + 1]: where the rows of each begin
  Tensor order;    // int32 [rows]: the route of each row
  Tensor places;   // int32 [tokens, choices]: the row of each route, or -1
};
inline SortedRoutes experts_sort(const Tensor& chosen, int64_t experts) {
  ds_tensor *offsets = nullptr, *order = nullptr, *places = nullptr;
  check(ds_experts_sort(chosen.get(), experts, &offsets, &order, &places));
  return {Tensor(offsets), Tensor(order), Tensor(places)};
}
// Tokens to rows and back; weights may be null.
inline Tensor experts_dispatch(const Tensor& tokens, const Tensor& order, int64_t choices,
                               const Tensor* weights = nullptr) {
  ds_tensor* out = nullptr;
  check(ds_experts_dispatch(tokens.get(), order.get(), choices,
                            weights != nullptr ? weights->get() : nullptr, &out));
  return Tensor(out);
}
inline Tensor experts_combine(const Tensor& rows, const Tensor& places,
                              const Tensor* weights = nullptr) {
  ds_tensor* out = nullptr;
  check(ds_experts_combine(rows.get(), places.get(), weights != nullptr ? weights->get() : nullptr,
                           &out));
  return Tensor(out);
}
inline Tensor experts_weights_backward(const Tensor& rows, const Tensor& places,
                                       const Tensor& gradient) {
  ds_tensor* out = nullptr;
  check(ds_experts_weights_backward(rows.get(), places.get(), gradient.get(), &out));
  return Tensor(out);
}

}  // namespace libds

#endif  // DS_EXPERTS_HPP
