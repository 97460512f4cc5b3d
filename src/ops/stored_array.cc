#include "ops/stored_array.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/split_master.h"

namespace ds::ops {
namespace {

// The elements of a packed tensor that belong to a part, which begins at `at`.
Tensor beside(const Tensor& flat, const Tensor& part, int64_t at) {
  return flat.slice(0, at, at + part.elements());
}

// Calls body(there, part, at) for the elements of a range where they lie: those in the memory of a
// GPU as they are, with a context to compute there, the others mapped.
template <class Body>
void for_places(const OpContext& ctx, const StoredArray& array, int64_t begin, int64_t end,
                Access access, const Body& body) {
  const int64_t rest = std::clamp(array.device_elements(), begin, end);
  if (rest > begin) {
    Tensor part = array.view(begin, rest);
    body(OpContext{part.storage()->device(), ctx.pool}, part);
  }
  array.for_parts(rest, end, access, [&](Tensor& part, int64_t) { body(ctx, part); });
}

}  // namespace

void read_array(const OpContext& ctx, const StoredArray& from, int64_t begin, Tensor& to) {
  const Tensor flat = to.view({to.elements()});
  from.for_parts(begin, begin + flat.elements(), Access::kRead, [&](Tensor& part, int64_t at) {
    Tensor target = beside(flat, part, at);
    cast(ctx, part, target);
  });
}

void write_array(const OpContext& ctx, const Tensor& from, const StoredArray& to, int64_t begin) {
  const Tensor flat = from.view({from.elements()});
  to.for_parts(begin, begin + flat.elements(), Access::kWrite,
               [&](Tensor& part, int64_t at) { cast(ctx, beside(flat, part, at), part); });
}

void accumulate_array(const OpContext& ctx, const Tensor& x, const StoredArray& sum,
                      int64_t begin) {
  const Tensor flat = x.view({x.elements()});
  sum.for_parts(begin, begin + flat.elements(), Access::kReadWrite,
                [&](Tensor& part, int64_t at) { accumulate(ctx, beside(flat, part, at), part); });
}

void copy_array(const OpContext& ctx, const StoredArray& from, int64_t from_begin,
                const StoredArray& to, int64_t to_begin, int64_t count) {
  // By the smaller parts, so that neither maps more than that.
  if (!from.in_memory() && !to.in_memory() && from.part_elements() < to.part_elements()) {
    from.for_parts(
        from_begin, from_begin + count, Access::kRead,
        [&](const Tensor& part, int64_t at) { write_array(ctx, part, to, to_begin + at); });
    return;
  }
  to.for_parts(to_begin, to_begin + count, Access::kWrite,
               [&](Tensor& part, int64_t at) { read_array(ctx, from, from_begin + at, part); });
}

void split_to_arrays(const OpContext& ctx, const Tensor& masters, const SplitRange& to) {
  const Tensor flat = masters.view({masters.elements()});
  to.low.for_parts(
      to.low_begin, to.low_begin + flat.elements(), Access::kWrite, [&](Tensor& low, int64_t at) {
        const int64_t begin = to.weights_begin + at;
        to.weights.for_parts(begin, begin + low.elements(), Access::kWrite,
                             [&](Tensor& high, int64_t within) {
                               Tensor rest = beside(low, high, within);
                               split_masters(ctx, beside(flat, high, at + within), high, rest);
                             });
      });
}

void join_from_arrays(const OpContext& ctx, const SplitRange& from, const Tensor& masters) {
  const Tensor flat = masters.view({masters.elements()});
  from.low.for_parts(from.low_begin, from.low_begin + flat.elements(), Access::kRead,
                     [&](const Tensor& low, int64_t at) {
                       const int64_t begin = from.weights_begin + at;
                       from.weights.for_parts(begin, begin + low.elements(), Access::kRead,
                                              [&](const Tensor& high, int64_t within) {
                                                Tensor joined = beside(flat, high, at + within);
                                                join_masters(ctx, high, beside(low, high, within),
                                                             joined);
                                              });
                     });
}

void fill_array(const OpContext& ctx, float value, const StoredArray& array, int64_t begin,
                int64_t end) {
  for_places(ctx, array, begin, end, Access::kWrite,
             [&](const OpContext& there, Tensor& part) { fill(there, value, part); });
}

void scale_array(const OpContext& ctx, const StoredArray& array, int64_t begin, int64_t end,
                 float factor) {
  for_places(ctx, array, begin, end, Access::kReadWrite,
             [&](const OpContext& there, Tensor& part) { scale(there, part, factor, part); });
}

ExactSum exact_squares(const OpContext& ctx, const StoredArray& array, int64_t begin, int64_t end) {
  ExactSum sum;
  for_places(
      ctx, array, begin, end, Access::kRead,
      [&](const OpContext& there, const Tensor& part) { sum.add(exact_squares(there, part)); });
  return sum;
}

}  // namespace ds::ops
