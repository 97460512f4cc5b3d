// Casts on the CPU. The CPU multiplies no codes: it widens them, and keeps no transposed copies.
#include <algorithm>
#include <array>
#include <atomic>

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/fp8/codes.h"

namespace ds::kernels {
namespace {

constexpr int64_t kGrain = 1 << 15;  // elements of a piece of work

int64_t rows_per_chunk(int64_t columns) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, columns));
}

// The maximum has the same bits in any order.
class Largest {
 public:
  void take(float value) {
    float seen = value_.load(std::memory_order_relaxed);
    while (value > seen && !value_.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }
  float value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<float> value_{0};
};

float largest_of(const bfloat16* x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t size = x[i].bits & 0x7FFFu;
    most = std::max(most, size < 0x7F80u ? size : 0u);
  }
  return to_float(bfloat16{static_cast<uint16_t>(most)});
}

}  // namespace

void fp8_cast(const Fp8Cast& call, ThreadPool& pool) {
  DS_CHECK(!call.activation, Code::kInternal, "fp8_cast applies no function on the CPU");
  Largest most;
  const int64_t grain = call.sums != nullptr ? kFp8SumRows : rows_per_chunk(call.columns);
  pool.for_range(call.rows, grain, [&](int64_t begin, int64_t end) {
    float* const part =
        call.sums != nullptr ? call.partials + begin / grain * call.columns : nullptr;
    if (part != nullptr) std::fill_n(part, call.columns, 0.0f);
    for (int64_t row = begin; row < end; ++row) {
      const bfloat16* const x = call.x + row * call.stride;
      most.take(largest_of(x, call.columns));
      for (int64_t i = 0; part != nullptr && i < call.columns; ++i) part[i] += to_float(x[i]);
      with_fp8_format(call.format, [&](auto format) {
        const auto encode = [&](uint8_t* to, int64_t step) {
          for (int64_t i = 0; i < call.columns; ++i) {
            to[i * step] = fp8_code<decltype(format)::value>(to_float(x[i]), *call.scale);
          }
        };
        if (call.codes != nullptr) encode(call.codes + row * call.columns, 1);
        if (call.transposed != nullptr) encode(call.transposed + row, call.rows);
      });
    }
  });
  *call.amax = std::max(*call.amax, most.value());
  for (int64_t i = 0; call.sums != nullptr && i < call.columns; ++i) {
    float total = 0;
    for (int64_t part = 0; part < fp8_sum_parts(call.rows); ++part) {
      total += call.partials[part * call.columns + i];
    }
    call.sums[i] += total;
  }
}

void fp8_first_scale(const Fp8FirstScale& call, ThreadPool& pool) {
  if (*call.scale > 0) return;
  Largest most;
  pool.for_range(call.rows, rows_per_chunk(call.columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      most.take(largest_of(call.x + row * call.stride, call.columns));
    }
  });
  *call.amax = std::max(*call.amax, most.value());
  *call.scale = *call.amax > 0 ? fp8_scale(call.format, *call.amax, call.margin) : 1.0f;
  *call.inverse = fp8_inverse(*call.scale);
}

void fp8_widen(Fp8Format format, const uint8_t* codes, int64_t n, const float* inverse,
               bfloat16* out, ThreadPool& pool) {
  std::array<bfloat16, 256> values;
  with_fp8_format(format, [&](auto f) {
    for (size_t code = 0; code < values.size(); ++code) {
      values[code] =
          to_bfloat16(fp8_value<decltype(f)::value>(static_cast<uint8_t>(code)) * *inverse);
    }
  });
  pool.for_range(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = values[codes[i]];
  });
}

void fp8_update(const Fp8Update& call, ThreadPool&) {
  for (int64_t t = 0; t < call.tensors; ++t) fp8_update_one(call, call.formats[t % call.kinds], t);
}

}  // namespace ds::kernels
