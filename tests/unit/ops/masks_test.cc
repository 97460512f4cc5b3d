// Dropout masks belong to samples: a batch's are those of its parts, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "ops/attention.h"
#include "ops/dropout.h"

namespace ds {
namespace {

constexpr DType kType = DType::kFloat32;

class Masks : public ::testing::Test {
 protected:
  Tensor numbers(const Shape& shape, int salt) {
    Tensor t = Tensor::zeros(device_, kType, shape, MemoryTag::kOther);
    for (int64_t i = 0; i < t.elements(); ++i) {
      t.data<float>()[i] = static_cast<float>((i * 37 + salt * 11) % 101 - 50) / 25;
    }
    return t;
  }
  Tensor copy(const Tensor& part) {
    Tensor t = Tensor::zeros(device_, kType, part.shape(), MemoryTag::kOther);
    std::memcpy(t.raw(), part.raw(), static_cast<size_t>(part.bytes()));
    return t;
  }
  static RandomStream stream_from(int64_t sample) {
    return {99, 4, 7, static_cast<uint32_t>(sample)};
  }
  static void expect_same_bits(const Tensor& a, const Tensor& b, const char* what) {
    ASSERT_EQ(a.bytes(), b.bytes());
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0) << what;
  }

  std::shared_ptr<Device> device_ = make_cpu_device();
  ThreadPool pool_{2};
  OpContext ctx_{device_, &pool_};
};

TEST_F(Masks, OfDropout) {
  for (const int64_t width : {1, 3, 8, 4099}) {
    const Tensor x = numbers({6, 2, width}, 1);
    Tensor y = numbers({6, 2, width}, 2);
    ops::dropout(ctx_, x, {}, 0.4, stream_from(0), y);
    for (const int64_t count : {1, 2, 3}) {
      for (int64_t first = 0; first < 6; first += count) {
        const Tensor part = copy(x.slice(0, first, first + count));
        Tensor out = numbers(part.shape(), 3);
        ops::dropout(ctx_, part, {}, 0.4, stream_from(first), out);
        expect_same_bits(out, y.slice(0, first, first + count), "forward");
        ops::dropout_backward(ctx_, part, 0.4, stream_from(first), out);
        expect_same_bits(out, y.slice(0, first, first + count), "backward");
      }
    }
  }
}

// A longer sample begins with the mask of a shorter one.
TEST_F(Masks, OfPaddedSamples) {
  const Tensor x = numbers({3, 5, 16}, 1);
  Tensor y = numbers({3, 5, 16}, 2);
  ops::dropout(ctx_, x, {}, 0.4, stream_from(2), y);
  for (int64_t sample = 0; sample < 3; ++sample) {
    const Tensor part = copy(x.slice(0, sample, sample + 1).slice(1, 0, 4));
    Tensor out = numbers(part.shape(), 3);
    ops::dropout(ctx_, part, {}, 0.4, stream_from(2 + sample), out);
    expect_same_bits(out, y.slice(0, sample, sample + 1).slice(1, 0, 4), "shorter");
  }
}

TEST_F(Masks, OfAttention) {
  constexpr int64_t kBatch = 4, kLength = 70, kHeads = 2, kSize = 8;
  const Shape shape{kBatch, kLength, kHeads, kSize};
  const Tensor q = numbers(shape, 1), k = numbers(shape, 2), v = numbers(shape, 3);
  ops::AttentionOptions options;
  options.causal = true;
  options.scale = 0.3f;
  options.dropout = 0.4;
  const auto run = [&](int64_t first, int64_t count) {
    const auto part = [&](const Tensor& x) { return copy(x.slice(0, first, first + count)); };
    options.stream = stream_from(first);
    std::vector<Tensor> out;
    for (int i = 0; i < 4; ++i) {
      out.push_back(numbers({count, kLength, kHeads, kSize}, 4));
    }
    Tensor lse = numbers({count, kHeads, kLength}, 5);
    ops::attention(ctx_, {.q = part(q), .k = part(k), .v = part(v)}, options,
                   {.out = out[0], .lse = lse});
    ops::attention_backward(ctx_, {.q = part(q), .k = part(k), .v = part(v)}, options,
                            {.out = out[0], .lse = lse}, part(v),
                            {.dq = out[1], .dk = out[2], .dv = out[3]});
    return out;
  };
  const std::vector<Tensor> whole = run(0, kBatch);
  for (const int64_t count : {1, 2}) {
    for (int64_t first = 0; first < kBatch; first += count) {
      const std::vector<Tensor> parts = run(first, count);
      for (size_t i = 0; i < parts.size(); ++i) {
        expect_same_bits(parts[i], whole[i].slice(0, first, first + count), "attention");
      }
    }
  }
}

}  // namespace
}  // namespace ds
