// The arithmetic of `ds eval`: batches through the model, and what their logits say of the tokens
// that follow.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ds.hpp"

namespace tool {

// `length` input tokens at `ids`, each predicting the next one: ids[1], ..., ids[length]. The
// predictions from position `from` on count.
struct Passage {
  const int32_t* ids = nullptr;
  int64_t length = 0;
  int64_t from = 0;
};

// Sliding windows of at most `length` inputs over all targets of `count` tokens. The first window's
// targets all count; each further one begins `step` tokens later and adds the last `step` of its
// targets. Every target counts once.
std::vector<Passage> sliding_windows(const int32_t* ids, int64_t count, int64_t length,
                                     int64_t step);

// A prediction that counts: the passage's number, the logits and the token that followed.
using Prediction =
    std::function<void(size_t passage, const float* logits, int64_t vocabulary, int32_t next)>;

// Which batches are whose: of `count` ranks that make passes together, each takes every so-many-th.
struct RankShare {
  size_t rank = 0;
  size_t count = 1;
};

// Runs the passages `batch` at a time, padded at the end: a causal model does not look there. Of
// several ranks each sees the predictions of its own batches, and makes as many passes as the
// others. `progress` is called after each pass with how many passages are done.
void predict(libds::Generator& generator, const std::vector<Passage>& passages, int64_t batch,
             const RankShare& share, const Prediction& prediction,
             const std::function<void(size_t done)>& progress);

// -log of the softmax at `next`, in double. Failure when a logit is not finite.
double token_loss(const float* logits, int64_t vocabulary, int32_t next);
// Whether `next` is the likeliest token, the first of equal ones.
bool is_likeliest(const float* logits, int64_t vocabulary, int32_t next);

}  // namespace tool
