// Boxes: rectangular parts of a tensor (offset and extent per dimension). They tie what one rank
// holds to the logical tensor, so that any topology can read what any other wrote.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ds {

struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> extent;

  bool operator==(const Box&) const = default;
  // Product of the extents; call only on a box that check_box accepted.
  int64_t elements() const;
  std::string text() const;  // "[0:2, 3:5]"
};

// The product of `shape`; throws `code` naming `what` for a negative size, too many dimensions or
// an overflow (of the product, or of the product times `element_size`).
int64_t checked_elements(std::span<const int64_t> shape, int64_t element_size, Code code,
                         std::string_view what);

Box full_box(std::span<const int64_t> shape);

// Throws `code` naming `what` unless the box has the shape's rank and lies inside it.
void check_box(const Box& box, std::span<const int64_t> shape, Code code, std::string_view what);

// The common part of two boxes of the same rank; nothing when it holds no element.
std::optional<Box> intersect(const Box& a, const Box& b);

// Throws `code` naming `what` unless the boxes (each checked before) cover every element of
// `shape` exactly once.
void check_tiling(std::span<const int64_t> shape, std::span<const Box> boxes, Code code,
                  std::string_view what);

// The elements [begin, end) of the flattened tensor as boxes, in memory order: what a flat
// (ZeRO) partition holds of a tensor. At most 2 * rank - 1 boxes.
std::vector<Box> boxes_of_range(std::span<const int64_t> shape, int64_t begin, int64_t end);

// Calls fn(source, target, count), in elements and rising source order, for the contiguous runs
// that carry `part` from a packed `source` box to a packed `target` box; `part` lies in both.
void for_each_run(const Box& source, const Box& target, const Box& part,
                  const std::function<void(int64_t, int64_t, int64_t)>& fn);

}  // namespace ds
