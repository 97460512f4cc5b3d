// The generators whose exact sequences data orders are made of: numpy's legacy RandomState and
// torch's CPU randperm. Both are the 32-bit Mersenne Twister of <random>.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace ds {

// numpy.random.RandomState(seed).
class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}

  double random();                             // [0, 1), 53 bits
  int64_t randint(int64_t low, int64_t high);  // [low, high)
  std::vector<int64_t> permutation(int64_t n);

  template <class T>
  void shuffle(std::span<T> values) {
    for (size_t i = values.size(); i-- > 1;) {
      std::swap(values[i], values[static_cast<size_t>(interval(i))]);
    }
  }

 private:
  uint32_t next() { return static_cast<uint32_t>(engine_()); }
  // Uniform in [0, most] by masked rejection; no draw if most is 0.
  uint64_t interval(uint64_t most);

  std::mt19937 engine_;
};

// torch.randperm(n, generator=torch.Generator().manual_seed(seed)).
std::vector<int64_t> torch_randperm(int64_t n, uint32_t seed);

}  // namespace ds
