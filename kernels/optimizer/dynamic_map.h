// The dynamic map of 8-bit optimizer states as tables, and its scalar form; quantize8-inl.h
// describes it and holds the vector form.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace ds::kernels {

struct DynamicMap {
  int top = 0;    // the exponent of the last decade
  int codes = 0;  // the last code
  // Tables by the code's exponent e, each twice for vectors of 16 lanes.
  // fraction = scale * (code / 2^e) + offset
  float scale[16] = {}, offset[16] = {};
  // A fraction lies in the part of code floor(fraction * code_scale + code_offset).
  float code_scale[16] = {}, code_offset[16] = {};
  // From threshold[e] on, fractions are nearer to decade e than to the one below; decades that
  // the map lacks are out of reach.
  float threshold[16] = {};
  float zero_threshold = 0;  // below it, zero is nearer than code 1
  float top_threshold = 0;   // from it on, the last code is nearest
};

// The same for vectors of 16 lanes without a search. A slot is a decade, or stands for zero (slot
// 0; of unsigned numbers for code 1, where its part and what is less meet) or for the last code
// (behind the decades).
struct DynamicSlots {
  // Added to the bits of a fraction from 2^-31 on, leaves its slot from bit 23 on, of which the
  // lowest four count; by the lower five bits of its exponent.
  uint32_t slot[32] = {};
  // Tables as above by slot, and the last code of each.
  float code_scale[16] = {}, code_offset[16] = {}, last[16] = {};
  // fraction = scale * code + offset by the lower four bits of the exponent of code * spread +
  // apart, which tells zero and the last code from the decades.
  float spread = 0, apart = 0x1p-4f;
  float scale[16] = {}, offset[16] = {};
};

// The same for vectors of 8 lanes. The upper 16 bits of a float are nearly linear in its logarithm,
// so
// ((bits >> 16) - low, 0 if that is negative) * factor / 2^16 is its decade or the one below, and
// one comparison decides.
struct DynamicEstimate {
  uint16_t low = 0, factor = 0;
  float threshold[8] = {};  // of the decade above
  float last[8] = {};       // the last code of a decade but the last of all
  // As DynamicSlots, by the lower three bits of a code's exponent.
  float scale[8] = {}, offset[8] = {};
};

constexpr DynamicEstimate make_dynamic_estimate(const DynamicMap& map) {
  const auto upper_half = [](float x) {
    return static_cast<double>(std::bit_cast<uint32_t>(x) >> 16);
  };
  DynamicEstimate estimate;
  // The line through the first threshold and the last, less than a decade's tenth below them: that
  // is more than a logarithm differs from the bits, and than cutting them off takes away.
  const double first = upper_half(map.threshold[1]), last = upper_half(map.threshold[map.top]);
  const double decade = (last - first) / (map.top - 1);
  estimate.low = static_cast<uint16_t>(first - 0.9 * decade);
  estimate.factor = static_cast<uint16_t>(65536 / decade);
  for (int e = 0; e <= map.top; ++e) {
    const int end = (2 << e) - 1;
    estimate.threshold[e] = map.threshold[e + 1];
    estimate.last[e] = static_cast<float>(end < map.codes ? end : map.codes - 1);
    estimate.scale[(127 + e) % 8] = map.scale[e] / static_cast<float>(1 << e);
    estimate.offset[(127 + e) % 8] = map.offset[e];
  }
  estimate.threshold[map.top] = 4;  // never
  return estimate;
}

constexpr DynamicSlots make_dynamic_slots(const DynamicMap& map, bool is_signed) {
  DynamicSlots slots;
  float bounds[16] = {};
  int count = 0;
  // Unsigned fractions on either side of the first bound have the same code, 1.
  bounds[count++] =
      is_signed ? map.zero_threshold : 1.05f * (1 - map.code_offset[0]) / map.code_scale[0];
  for (int e = 1; e <= map.top; ++e) bounds[count++] = map.threshold[e];
  bounds[count++] = map.top_threshold;
  for (uint32_t k = 0; k < 32; ++k) {
    const uint32_t exponent = 96 + k;
    const float low = std::bit_cast<float>(exponent << 23);
    // The slot of the power of 2, and from which fraction of it on it is the next one, if any.
    uint32_t begin = 0, next = 1u << 23;
    for (int b = 0; b < count; ++b) {
      if (bounds[b] <= low) ++begin;
      if (bounds[b] > low && bounds[b] < 2 * low) next = std::bit_cast<uint32_t>(bounds[b]) % next;
    }
    slots.slot[k] = ((begin - exponent + 1) << 23) - next;
  }
  if (!is_signed) slots.code_offset[0] = slots.last[0] = 1;
  for (int e = 0; e <= map.top; ++e) {
    const int end = (2 << e) - 1;
    slots.code_scale[e + 1] = map.code_scale[e];
    slots.code_offset[e + 1] = map.code_offset[e];
    slots.last[e + 1] = static_cast<float>(end < map.codes ? end : map.codes - 1);
    slots.scale[(127 + e) % 16] = map.scale[e] / static_cast<float>(1 << e);
    slots.offset[(127 + e) % 16] = map.offset[e];
  }
  slots.code_offset[map.top + 2] = slots.last[map.top + 2] = static_cast<float>(map.codes);
  slots.spread = static_cast<float>(map.codes + 1) / static_cast<float>(map.codes);
  slots.offset[(127 + map.top + 1) % 16] = 1;
  return slots;
}

constexpr DynamicMap make_dynamic_map(int top) {
  DynamicMap map;
  map.top = top;
  map.codes = (2 << top) - 1;
  map.threshold[7] = 2;
  double decade = 1;  // the upper end of decade e
  for (int e = top; e >= 0; --e, decade /= 10) {
    const double parts = 1 << e;
    map.scale[e] = static_cast<float>(0.9 * decade);
    map.offset[e] = static_cast<float>(decade * (0.45 / parts - 0.8));
    map.code_scale[e] = static_cast<float>(parts / (0.9 * decade));
    map.code_offset[e] = static_cast<float>(parts * 8 / 9);
    // Halfway between the last code of the decade below, whose parts are twice as wide in relation
    // to it, and the first of this one.
    map.threshold[e] = static_cast<float>(decade * (0.1 + 0.18 / parts));
    if (e == 0) map.zero_threshold = static_cast<float>(decade * 0.275);
  }
  for (int e = 0; e < 8; ++e) {
    for (float* table : {map.scale, map.offset, map.code_scale, map.code_offset, map.threshold}) {
      table[e + 8] = table[e];
    }
  }
  // Halfway between 1 and the code before the last.
  map.top_threshold = static_cast<float>(1 - 0.675 / (1 << top));
  return map;
}

inline float decode_one(const DynamicMap& map, bool is_signed, uint8_t stored) {
  const int code = is_signed ? static_cast<int8_t>(stored) : stored;
  const int magnitude = code < 0 ? -code : code;
  if (magnitude == 0) return 0;
  const int e = std::bit_width(static_cast<unsigned>(magnitude)) - 1;
  float value = 1;
  if (magnitude < map.codes) {
    value =
        map.scale[e] * (static_cast<float>(magnitude) / static_cast<float>(1 << e)) + map.offset[e];
  }
  return code < 0 ? -value : value;
}

inline uint8_t encode_one(const DynamicMap& map, bool is_signed, float value) {
  const float x = is_signed ? std::fabs(value) : value;
  if (is_signed ? !(x >= map.zero_threshold) : !(x > 0)) return 0;
  int code = map.codes;
  if (x < map.top_threshold) {
    int e = 0;
    while (e < map.top && x >= map.threshold[e + 1]) ++e;
    const float place = x * map.code_scale[e] + map.code_offset[e];
    const int last = (2 << e) - 1 < map.codes ? (2 << e) - 1 : map.codes - 1;
    code = static_cast<int>(place);
    code = code < (1 << e) ? 1 << e : code > last ? last : code;
  }
  return static_cast<uint8_t>(is_signed && value < 0 ? -code : code);
}

}  // namespace ds::kernels
