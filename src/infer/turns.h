// Ranks that make passes together tell each other before each one who has a text to go on with.
#pragma once

#include <exception>

#include "base/text.h"
#include "infer/decoder.h"
#include "mesh/mesh.h"

namespace ds::infer {

class Turns {
 public:
  Turns(const OpContext& ctx, const RankGroup& ranks);

  // Whether any rank goes on.
  bool take(bool goes_on);
  explicit operator bool() const { return static_cast<bool>(ranks_); }

  // The pass of this turn. The others are in it, too: a rank that leaves it ends the group.
  template <class Pass>
  auto pass(const Pass& make) {
    try {
      return make();
    } catch (const std::exception& error) {
      if (ranks_) ranks_->abort(str_cat("a pass over the model failed: ", error.what()));
      throw;
    }
  }

  // Makes the others' passes until all have finished.
  void serve(Decoder& decoder);

 private:
  const RankGroup ranks_;
  Tensor goes_on_;
};

}  // namespace ds::infer
