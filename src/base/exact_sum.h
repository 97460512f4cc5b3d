// A sum of non-negative doubles that does not depend on their order: a fixed-point number wide
// enough for every bit. Norms over sharded gradients come out the same however they are cut.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace ds {

class ExactSum {
 public:
  // The words of a sum may be added to those of another, as integers, and make the sum of both.
  static constexpr int kWords = 22;

  // `value` is 0 or of a magnitude between 2^-320 and 2^320 with no bits below 2^-320, as are
  // squares of floats and sums and differences of them; or it is not finite, and then so is the
  // sum. Once all that belongs together was added, no sum is negative.
  void add(double value);
  void add(const ExactSum& other);

  // Infinity once a value was not finite.
  double value() const;

  std::span<int64_t> words() { return words_; }
  std::span<const int64_t> words() const { return words_; }

 private:
  static constexpr int kLimbs = kWords - 1;
  void carry();

  // Limbs of 32 bits, lowest first, with room for carries above; then how many values were not
  // finite.
  std::array<int64_t, kWords> words_ = {};
  int64_t adds_ = 0;  // since the last carry
};

}  // namespace ds
