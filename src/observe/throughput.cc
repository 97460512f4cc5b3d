#include "observe/throughput.h"

namespace ds {

double megatron_flops(const DecoderShape& shape, int64_t batch, int64_t length, bool exact) {
  const auto b = static_cast<double>(batch), s = static_cast<double>(length);
  const auto h = static_cast<double>(shape.hidden), l = static_cast<double>(shape.layers);
  // As Megatron has it, in whole numbers.
  const int64_t whole = exact ? 0 : 2 / (shape.heads / shape.kv_heads);
  const double key_value =
      exact ? 2.0 * static_cast<double>(shape.kv_heads) / static_cast<double>(shape.heads)
            : static_cast<double>(whole);
  const double projections = b * l * (2 + key_value) * h * h * s;
  const double scores = b * l * 2 * h * s * s;
  const double ffn = b * l * (shape.gated ? 3 : 2) * static_cast<double>(shape.ffn) * h * s;
  const double logits = b * static_cast<double>(shape.vocab) * h * s;
  const double forward = projections + scores + ffn + logits;
  return 2 * forward * (3 + shape.recomputed);
}

}  // namespace ds
