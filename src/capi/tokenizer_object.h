// What stands behind a ds_tokenizer.
#pragma once

#include "capi/handles.h"
#include "tokenizer/tokenizer.h"

namespace ds::capi {

class TokenizerObject : public HandleObject {
 public:
  explicit TokenizerObject(TokenizerPtr value) : tokenizer(std::move(value)) {}
  const TokenizerPtr tokenizer;
};

template <>
struct HandleTraits<ds_tokenizer> {
  using Object = TokenizerObject;
  static constexpr HandleKind kind = HandleKind::kTokenizer;
};

}  // namespace ds::capi
