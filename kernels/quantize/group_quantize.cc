// Groups to codes and back. Plain loops in double: exactness, not speed, is what callers want.
#include "kernels/quantize/group_quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/thread_pool.h"

namespace ds::kernels {
namespace {

// How the elements of one group become codes.
struct Group {
  float scale = 0, minimum = 0;
  double low = 0, high = 0;

  double code(double x, const RandomStream* random, int64_t element) const {
    if (!(scale > 0)) return 0;  // all elements are the same, or one is not finite
    const double at = (x - static_cast<double>(minimum)) / static_cast<double>(scale);
    constexpr double kUnit = 0x1p-32;
    const double whole =
        random == nullptr ? std::nearbyint(at)
                          : std::floor(at + kUnit * random->bits(static_cast<uint64_t>(element)));
    return std::clamp(whole, low, high);
  }
  float value(double code) const {
    return static_cast<float>(static_cast<double>(minimum) + code * static_cast<double>(scale));
  }
};

template <class T>
Group group_of(const GroupFormat& format, const T* x, int64_t n) {
  double least = static_cast<double>(to_float(x[0])), most = least;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    const auto v = static_cast<double>(to_float(x[i]));
    least = std::min(least, v);
    most = std::max(most, v);
    finite = finite && std::isfinite(v);
  }
  Group g;
  if (!finite) {
    g.scale = g.minimum = std::numeric_limits<float>::quiet_NaN();
    return g;
  }
  if (format.minima) {
    g.high = (1 << format.bits) - 1;
    g.minimum = static_cast<float>(least);
    g.scale = static_cast<float>((most - least) / g.high);
  } else {
    g.high = (1 << (format.bits - 1)) - 1;
    g.low = -g.high;
    g.scale = static_cast<float>(std::max(std::abs(least), std::abs(most)) / g.high);
  }
  return g;
}

// Calls each(group, first element, end) for the groups, on all threads.
template <class Each>
void for_groups(const GroupFormat& format, int64_t elements, ThreadPool& pool, const Each& each) {
  const int64_t grain = std::max<int64_t>(1, 8192 / format.group);
  pool.for_range(format.groups(elements), grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      each(i, i * format.group, std::min(elements, (i + 1) * format.group));
    }
  });
}

void put_code(int bits, int64_t element, double code, uint8_t* codes) {
  const auto stored = static_cast<uint8_t>(static_cast<int>(code));
  if (bits == 8) {
    codes[element] = stored;
  } else if (element % 2 == 0) {
    codes[element / 2] = static_cast<uint8_t>(stored << 4);  // the next element completes it
  } else {
    codes[element / 2] = static_cast<uint8_t>(codes[element / 2] | (stored & 15));
  }
}

double get_code(const GroupFormat& format, const uint8_t* codes, int64_t element) {
  int code = format.bits == 8   ? codes[element]
             : element % 2 == 0 ? codes[element / 2] >> 4
                                : codes[element / 2] & 15;
  if (!format.minima && code >= 1 << (format.bits - 1)) code -= 1 << format.bits;
  return code;
}

}  // namespace

void quantize_groups(const GroupFormat& format, const GroupInput& in, const GroupCodes& out,
                     ThreadPool& pool) {
  with_float_type(in.type, [&]<class T>(T) {
    const auto* x = static_cast<const T*>(in.x);
    for_groups(format, in.elements, pool, [&](int64_t i, int64_t begin, int64_t end) {
      const Group g = group_of(format, x + begin, end - begin);
      out.scales[i] = g.scale;
      if (format.minima) out.minima[i] = g.minimum;
      for (int64_t e = begin; e < end; ++e) {
        const auto v = static_cast<double>(to_float(x[e]));
        put_code(format.bits, e, g.code(v, in.random, e), out.codes);
      }
    });
  });
}

void dequantize_groups(const GroupFormat& format, const GroupCodes& in, int64_t elements,
                       FloatType type, void* y, ThreadPool& pool) {
  with_float_type(type, [&]<class T>(T) {
    auto* out = static_cast<T*>(y);
    for_groups(format, elements, pool, [&](int64_t i, int64_t begin, int64_t end) {
      const Group g{in.scales[i], format.minima ? in.minima[i] : 0.0f};
      for (int64_t e = begin; e < end; ++e) {
        out[e] = from_float<T>(g.value(get_code(format, in.codes, e)));
      }
    });
  });
}

void fake_quantize_groups(const GroupFormat& format, const GroupInput& in, void* y,
                          ThreadPool& pool) {
  with_float_type(in.type, [&]<class T>(T) {
    const auto* x = static_cast<const T*>(in.x);
    auto* out = static_cast<T*>(y);
    for_groups(format, in.elements, pool, [&](int64_t, int64_t begin, int64_t end) {
      const Group g = group_of(format, x + begin, end - begin);
      for (int64_t e = begin; e < end; ++e) {
        const auto v = static_cast<double>(to_float(x[e]));
        out[e] = from_float<T>(g.value(g.code(v, in.random, e)));
      }
    });
  });
}

}  // namespace ds::kernels
