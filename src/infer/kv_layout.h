// What a key-value cache holds of a token in one layer.
#pragma once

#include "models/architecture.h"
#include "tensor/tensor.h"

namespace ds::infer {

struct KvLayout {
  explicit KvLayout(const models::ArchitectureInfo& info)
      : heads(info.kv_heads), size(info.head_size), values_in_keys(info.values_in_keys) {}

  int64_t heads, size;
  int64_t values_in_keys;  // as in ArchitectureInfo

  // Keys, and values beside them where these are not channels of the keys.
  int64_t parts() const { return values_in_keys > 0 ? 1 : 2; }
  // Of tensors [B, tokens, parts, heads, size]: part 0 is keys, 1 is values, [B, tokens, heads,
  // ...].
  Tensor part(const Tensor& rows, int which) const {
    if (values_in_keys == 0) return rows.select(2, which);
    const Tensor keys = rows.select(2, 0);
    return which == 0 ? keys : keys.slice(3, size - values_in_keys, size);
  }
};

}  // namespace ds::infer
