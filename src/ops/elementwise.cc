// Checks and launches of the element-wise operators.
#include "ops/elementwise.h"

#include <algorithm>
#include <vector>

#include "kernels/elementwise/elementwise.h"
#include "ops/checks.h"

namespace ds::ops {
namespace {

using TensorList = std::span<const Tensor* const>;

// flat[offsets[i] ...] += scale * xs[i]; `ends` are those of the tensors laid end to end.
void add_to_parts(TensorList xs, std::span<const int64_t> ends, std::span<const int64_t> offsets,
                  float scale, Tensor& flat, ThreadPool& pool) {
  constexpr int64_t kGrain = int64_t{1} << 15;
  pool.for_range(xs.empty() ? 0 : ends.back(), kGrain, [&](int64_t begin, int64_t end) {
    auto i = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
    for (; begin < end; ++i) {
      const int64_t count = std::min(end, ends[i]) - begin;
      if (count == 0) continue;
      const int64_t at = begin - (ends[i] - xs[i]->elements());
      with_float_type(*xs[i], [&](auto x_type) {
        with_float_type(flat, [&](auto sum_type) {
          kernels::accumulate(xs[i]->data<decltype(x_type)>() + at, scale, count,
                              flat.data<decltype(sum_type)>() + offsets[i] + at, pool);
        });
      });
      begin += count;
    }
  });
}

// A launch takes many tensors, but of one type.
template <class Stream>
void add_to_parts(TensorList xs, std::span<const int64_t>, std::span<const int64_t> offsets,
                  float scale, Tensor& flat, const Stream& on) {
  const auto add_all = [&](auto x_type, auto sum_type) {
    using X = decltype(x_type);
    using Y = decltype(sum_type);
    std::vector<kernels::Accumulation<X, Y>> parts;
    for (size_t i = 0; i < xs.size(); ++i) {
      if (xs[i]->dtype() != DTypeOf<X>::value) continue;
      parts.push_back({xs[i]->data<X>(), flat.data<Y>() + offsets[i], xs[i]->elements()});
    }
    kernels::accumulate_many(parts.data(), static_cast<int64_t>(parts.size()), scale, on);
  };
  with_float_type(flat, [&](auto sum_type) {
    add_all(float{}, sum_type);
    add_all(bfloat16{}, sum_type);
    add_all(float16{}, sum_type);
  });
}

}  // namespace

void add(const OpContext& ctx, const Tensor& a, const Tensor& b, Tensor& y) {
  check_dense_float(a, Op{ctx, "add"}, "a");
  check_dense(b, Op{ctx, "add"}, "b", a.dtype(), a.shape());
  check_dense(y, Op{ctx, "add"}, "y", a.dtype(), a.shape());
  with_float_type(a, [&](auto type) {
    using T = decltype(type);
    run(ctx,
        [&](auto& on) { kernels::add(a.data<T>(), b.data<T>(), a.elements(), y.data<T>(), on); });
  });
}

void scale(const OpContext& ctx, const Tensor& x, float factor, Tensor& y) {
  check_dense_float(x, Op{ctx, "scale"}, "x");
  check_dense(y, Op{ctx, "scale"}, "y", x.dtype(), x.shape());
  with_float_type(x, [&](auto type) {
    using T = decltype(type);
    run(ctx, [&](auto& on) { kernels::scale(x.data<T>(), factor, x.elements(), y.data<T>(), on); });
  });
}

void fill(const OpContext& ctx, float value, Tensor& y) {
  check_dense_float(y, Op{ctx, "fill"}, "y");
  with_float_type(y, [&](auto type) {
    run(ctx, [&](auto& on) { kernels::fill(value, y.elements(), y.data<decltype(type)>(), on); });
  });
}

void cast(const OpContext& ctx, const Tensor& x, Tensor& y) {
  check_float_type(x, Op{ctx, "cast"}, "x");
  check_place(x, Op{ctx, "cast"}, "x");
  check_dense_float(y, Op{ctx, "cast"}, "y");
  DS_CHECK(y.shape() == x.shape(), Code::kInvalidArgument, "cast: y must have shape ",
           x.shape().text(), ", not ", y.shape().text());
  static_assert(kernels::Strided::kMaxDims == kMaxDims);
  kernels::Strided shape;
  shape.dims = x.dims();
  for (int i = 0; i < x.dims(); ++i) {
    shape.sizes[i] = x.size(i);
    shape.strides[i] = x.stride(i);
  }
  with_float_type(x, [&](auto x_type) {
    with_float_type(y, [&](auto y_type) {
      const auto* from = x.data<decltype(x_type)>();
      auto* to = y.data<decltype(y_type)>();
      if (x.contiguous()) {
        run(ctx, [&](auto& on) { kernels::cast(from, x.elements(), to, on); });
      } else {
        run(ctx, [&](auto& on) { kernels::cast(from, shape, to, on); });
      }
    });
  });
}

void accumulate(const OpContext& ctx, const Tensor& x, float scale, Tensor& sum) {
  check_dense_float(x, Op{ctx, "accumulate"}, "x");
  check_dense_float(sum, Op{ctx, "accumulate"}, "sum");
  check_dense(sum, Op{ctx, "accumulate"}, "sum", sum.dtype(), x.shape());
  with_float_type(x, [&](auto x_type) {
    with_float_type(sum, [&](auto sum_type) {
      run(ctx, [&](auto& on) {
        kernels::accumulate(x.data<decltype(x_type)>(), scale, x.elements(),
                            sum.data<decltype(sum_type)>(), on);
      });
    });
  });
}

void accumulate_into(const OpContext& ctx, std::span<const Tensor* const> xs,
                     std::span<const int64_t> offsets, float scale, Tensor& flat) {
  const Op op{ctx, "accumulate_into"};
  check_dense_float(flat, op, "flat");
  DS_CHECK(xs.size() == offsets.size(), Code::kInvalidArgument, op, ": ", xs.size(),
           " tensors and ", offsets.size(), " offsets");
  std::vector<int64_t> ends(xs.size());  // in the tensors laid end to end
  int64_t total = 0;
  for (size_t i = 0; i < xs.size(); ++i) {
    check_dense_float(*xs[i], op, "x");
    const int64_t n = xs[i]->elements();
    DS_CHECK(offsets[i] >= 0 && offsets[i] <= flat.elements() - n, Code::kInvalidArgument, op, ": ",
             n, " elements at ", offsets[i], " do not lie in ", flat.elements());
    ends[i] = total += n;
  }
  run(ctx, [&](auto& on) { add_to_parts(xs, ends, offsets, scale, flat, on); });
}

}  // namespace ds::ops
