#include "tensor/box.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/text.h"
#include "tensor/tensor.h"

namespace ds {
namespace {

// The dimension along which the boxes start at the most different places: sweeping it keeps the
// set of boxes that have to be compared small.
size_t sweep_dimension(std::span<const Box> boxes, size_t rank) {
  size_t best = 0, best_count = 0;
  for (size_t d = 0; d < rank; ++d) {
    std::vector<int64_t> starts;
    starts.reserve(boxes.size());
    for (const Box& box : boxes) starts.push_back(box.offset[d]);
    std::sort(starts.begin(), starts.end());
    const auto count =
        static_cast<size_t>(std::unique(starts.begin(), starts.end()) - starts.begin());
    if (count > best_count) {
      best = d;
      best_count = count;
    }
  }
  return best;
}

void add_range(std::span<const int64_t> shape, size_t dim, int64_t begin, int64_t end, Box* prefix,
               std::vector<Box>* out) {
  if (begin >= end) return;
  if (dim == shape.size()) {
    out->push_back(*prefix);
    return;
  }
  int64_t inner = 1;
  for (size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  const auto partial = [&](int64_t row, int64_t from, int64_t to) {
    prefix->offset[dim] = row;
    prefix->extent[dim] = 1;
    add_range(shape, dim + 1, from, to, prefix, out);
    for (size_t d = dim + 1; d < shape.size(); ++d) {
      prefix->offset[d] = 0;
      prefix->extent[d] = shape[d];
    }
  };
  int64_t first = begin / inner;
  const int64_t last = end / inner;
  if (begin % inner != 0) {
    partial(first, begin % inner, std::min(inner, end - first * inner));
    ++first;
  }
  if (last > first) {
    prefix->offset[dim] = first;
    prefix->extent[dim] = last - first;
    out->push_back(*prefix);
  }
  if (end % inner != 0 && last >= first) partial(last, 0, end % inner);
}

// Boxes that are added up (sign 1) or taken away (-1).
struct SignedBox {
  const Box* box;
  int64_t sign;
};

// Whether their indicator functions add up to 0 everywhere, going by the dimensions from `dim` on:
// they do when what changes at each coordinate of `dim` adds up to 0 in the others. Unlike a
// comparison of pairs this takes time in proportion to the boxes (times 2^rank at worst).
bool cancels(std::vector<SignedBox> boxes, size_t dim, size_t rank) {
  // Same boxes first: most of a grid's faces meet their like.
  const auto rest_less = [&](const SignedBox& a, const SignedBox& b) {
    const auto of = [&](const std::vector<int64_t>& v) {
      return std::span(v).subspan(std::min(dim, v.size()));
    };
    if (!std::ranges::equal(of(a.box->offset), of(b.box->offset))) {
      return std::ranges::lexicographical_compare(of(a.box->offset), of(b.box->offset));
    }
    return std::ranges::lexicographical_compare(of(a.box->extent), of(b.box->extent));
  };
  std::sort(boxes.begin(), boxes.end(), rest_less);
  std::vector<SignedBox> left;
  for (const SignedBox& box : boxes) {
    if (!left.empty() && !rest_less(left.back(), box)) {
      left.back().sign += box.sign;
    } else {
      if (!left.empty() && left.back().sign == 0) left.pop_back();
      left.push_back(box);
    }
  }
  if (!left.empty() && left.back().sign == 0) left.pop_back();
  if (left.empty()) return true;
  if (dim == rank) return false;
  struct Change {
    int64_t at;
    SignedBox box;
  };
  std::vector<Change> changes;
  for (const auto& [box, sign] : left) {
    changes.push_back({box->offset[dim], {box, sign}});
    changes.push_back({box->offset[dim] + box->extent[dim], {box, -sign}});
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return a.at < b.at; });
  for (size_t begin = 0; begin < changes.size();) {
    std::vector<SignedBox> here;
    size_t end = begin;
    for (; end < changes.size() && changes[end].at == changes[begin].at; ++end) {
      here.push_back(changes[end].box);
    }
    if (!cancels(std::move(here), dim + 1, rank)) return false;
    begin = end;
  }
  return true;
}

// Up to here pairs are compared, so that a message can name the two that overlap.
constexpr size_t kPairwise = 2048;

// The same of many boxes. What is wrong is known, but not where.
void check_many(std::span<const int64_t> shape, std::span<const Box> boxes, int64_t total,
                Code code, std::string_view what) {
  int64_t covered = 0;
  std::vector<SignedBox> sum;
  for (const Box& box : boxes) {
    if (box.elements() == 0) continue;
    DS_CHECK(!__builtin_add_overflow(covered, box.elements(), &covered), code, what, ": ",
             boxes.size(), " slices overlap");
    sum.push_back({&box, 1});
  }
  DS_CHECK(covered >= total, code, what, ": the slices hold ", covered, " of ", total,
           " elements; the rest is missing");
  const Box whole = full_box(shape);
  if (total > 0) sum.push_back({&whole, -1});
  DS_CHECK(covered == total && cancels(std::move(sum), 0, shape.size()), code, what, ": of ",
           boxes.size(), " slices some overlap");
}

}  // namespace

int64_t Box::elements() const {
  int64_t n = 1;
  for (const int64_t e : extent) n *= e;
  return n;
}

std::string Box::text() const {
  std::string out = "[";
  for (size_t d = 0; d < offset.size(); ++d) {
    out += str_cat(d == 0 ? "" : ", ", offset[d], ":", offset[d] + extent[d]);
  }
  return out + "]";
}

int64_t checked_elements(std::span<const int64_t> shape, int64_t element_size, Code code,
                         std::string_view what) {
  DS_CHECK(shape.size() <= static_cast<size_t>(kMaxDims), code, what, " has ", shape.size(),
           " dimensions; at most ", kMaxDims, " are supported");
  int64_t n = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    DS_CHECK(size >= 0, code, what, " has a negative size, ", size);
    empty = empty || size == 0;
    // Zeros are left out of the product: the other sizes must not overflow either.
    DS_CHECK(size == 0 || !__builtin_mul_overflow(n, size, &n), code, what,
             " has more elements than 64 bits can count");
  }
  int64_t bytes = 0;
  DS_CHECK(!__builtin_mul_overflow(n, element_size, &bytes), code, what,
           " has more bytes than 64 bits can count");
  return empty ? 0 : n;
}

Box full_box(std::span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
}

void check_box(const Box& box, std::span<const int64_t> shape, Code code, std::string_view what) {
  DS_CHECK(box.offset.size() == shape.size() && box.extent.size() == shape.size(), code, what,
           ": a box with ", box.offset.size(), " offsets and ", box.extent.size(),
           " extents for a tensor of ", shape.size(), " dimensions");
  for (size_t d = 0; d < shape.size(); ++d) {
    DS_CHECK(box.offset[d] >= 0 && box.extent[d] >= 0 && box.offset[d] <= shape[d] &&
                 box.extent[d] <= shape[d] - box.offset[d],
             code, what, ": offset ", box.offset[d], " and extent ", box.extent[d],
             " leave dimension ", d, " of size ", shape[d]);
  }
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box out;
  out.offset.resize(a.offset.size());
  out.extent.resize(a.offset.size());
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (begin >= end) return std::nullopt;
    out.offset[d] = begin;
    out.extent[d] = end - begin;
  }
  return out;
}

void check_tiling(std::span<const int64_t> shape, std::span<const Box> boxes, Code code,
                  std::string_view what) {
  const int64_t total = checked_elements(shape, 1, code, what);
  if (boxes.size() > kPairwise) return check_many(shape, boxes, total, code, what);
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t dim = sweep_dimension(boxes, shape.size());
  if (!shape.empty()) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return boxes[a].offset[dim] < boxes[b].offset[dim];
    });
  }
  int64_t covered = 0;
  std::vector<size_t> active;
  for (const size_t i : order) {
    const Box& box = boxes[i];
    if (box.elements() == 0) continue;
    if (!shape.empty()) {
      std::erase_if(active, [&](size_t j) {
        return boxes[j].offset[dim] + boxes[j].extent[dim] <= box.offset[dim];
      });
    }
    for (const size_t j : active) {
      const auto common = intersect(box, boxes[j]);
      DS_CHECK(!common, code, what, ": slices ", boxes[j].text(), " and ", box.text(),
               " overlap in ", common->text());
    }
    active.push_back(i);
    covered += box.elements();  // disjoint boxes inside the shape: never more than `total`
  }
  DS_CHECK(covered == total, code, what, ": the slices hold ", covered, " of ", total,
           " elements; the rest is missing");
}

std::vector<Box> boxes_of_range(std::span<const int64_t> shape, int64_t begin, int64_t end) {
  const int64_t total = checked_elements(shape, 1, Code::kInvalidArgument, "the shape");
  DS_CHECK(begin >= 0 && begin <= end && end <= total, Code::kInvalidArgument, "the range ", begin,
           ":", end, " leaves a tensor of ", total, " elements");
  std::vector<Box> out;
  Box prefix = full_box(shape);
  add_range(shape, 0, begin, end, &prefix, &out);
  return out;
}

void for_each_run(const Box& source, const Box& target, const Box& part,
                  const std::function<void(int64_t, int64_t, int64_t)>& fn) {
  const size_t rank = part.offset.size();
  if (part.elements() == 0) return;
  // Trailing dimensions that both boxes hold in full are one contiguous run.
  size_t outer = rank;
  int64_t run = 1;
  while (outer > 0) {
    const size_t d = outer - 1;
    run *= part.extent[d];
    --outer;
    if (part.extent[d] != source.extent[d] || part.extent[d] != target.extent[d]) break;
  }
  std::array<int64_t, kMaxDims> source_stride{}, target_stride{}, index{};
  int64_t s = 1, t = 1, source_at = 0, target_at = 0;
  for (size_t d = rank; d-- > 0;) {
    source_stride[d] = s;
    target_stride[d] = t;
    source_at += (part.offset[d] - source.offset[d]) * s;
    target_at += (part.offset[d] - target.offset[d]) * t;
    s *= source.extent[d];
    t *= target.extent[d];
  }
  for (;;) {
    fn(source_at, target_at, run);
    size_t d = outer;
    for (; d > 0; --d) {
      const size_t k = d - 1;
      source_at += source_stride[k];
      target_at += target_stride[k];
      if (++index[k] < part.extent[k]) break;
      source_at -= index[k] * source_stride[k];
      target_at -= index[k] * target_stride[k];
      index[k] = 0;
    }
    if (d == 0) return;
  }
}

}  // namespace ds
