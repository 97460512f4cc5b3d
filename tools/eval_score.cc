#include "eval_score.h"

#include <algorithm>
#include <cmath>

#include "ds.hpp"
#include "failure.h"
#include "format.h"

namespace tool {

std::vector<Passage> sliding_windows(const int32_t* ids, int64_t count, int64_t length,
                                     int64_t step) {
  const int64_t targets = count - 1;
  std::vector<Passage> windows;
  if (targets < 1) return windows;
  windows.push_back({ids, std::min(length, targets), 0});
  for (int64_t begin = step; begin + length - step < targets; begin += step) {
    windows.push_back({ids + begin, std::min(length, targets - begin), length - step});
  }
  return windows;
}

namespace {

// The logits of some passages, padded at the end to the longest.
libds::Tensor logits_of(libds::Generator& generator, const Passage* passages, size_t rows,
                        int64_t longest) {
  std::vector<int32_t> ids(rows * static_cast<size_t>(longest), 0);
  for (size_t i = 0; i < rows; ++i) {
    const Passage& p = passages[i];
    std::copy_n(p.ids, p.length, ids.begin() + static_cast<std::ptrdiff_t>(i) * longest);
  }
  return generator.logits(libds::Tensor::from(ids, {static_cast<int64_t>(rows), longest}));
}

}  // namespace

void predict(libds::Generator& generator, const std::vector<Passage>& passages, int64_t batch,
             const RankShare& share, const Prediction& prediction,
             const std::function<void(size_t done)>& progress) {
  const auto size = static_cast<size_t>(batch);
  for (size_t begin = 0; begin < passages.size(); begin += size * share.count) {
    const size_t first = begin + size * share.rank;
    if (first >= passages.size()) {  // the others still have a batch
      const Passage any{passages.front().ids, 1, 0};
      logits_of(generator, &any, 1, 1);
      continue;
    }
    const size_t rows = std::min(size, passages.size() - first);
    int64_t longest = 0;
    for (size_t i = 0; i < rows; ++i) longest = std::max(longest, passages[first + i].length);
    const libds::Tensor logits = logits_of(generator, &passages[first], rows, longest);
    if (logits.ndim() != 3) throw Failure("the model classifies whole texts: it has no next token");
    const int64_t vocabulary = logits.size(2);
    const auto* const data = static_cast<const float*>(logits.data());
    for (size_t i = 0; i < rows; ++i) {
      const Passage& p = passages[first + i];
      for (int64_t t = p.from; t < p.length; ++t) {
        const int32_t next = p.ids[t + 1];
        if (next < 0 || next >= vocabulary) {
          throw Failure(format("token %d is outside the model's vocabulary of %lld", next,
                               static_cast<long long>(vocabulary)));
        }
        const int64_t row = static_cast<int64_t>(i) * longest + t;
        prediction(first + i, data + row * vocabulary, vocabulary, next);
      }
    }
    progress(std::min(passages.size(), begin + size * share.count));
  }
}

double token_loss(const float* logits, int64_t vocabulary, int32_t next) {
  const double largest = *std::max_element(logits, logits + vocabulary);
  double sum = 0;
  for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(logits[v] - largest);
  const double loss = largest + std::log(sum) - logits[next];
  if (!std::isfinite(loss)) throw Failure("the model's logits are not finite");
  return loss;
}

bool is_likeliest(const float* logits, int64_t vocabulary, int32_t next) {
  if (!std::isfinite(logits[next])) throw Failure("the model's logits are not finite");
  return std::max_element(logits, logits + vocabulary) - logits == next;
}

}  // namespace tool
