// Products of words of codes with AVX2, added to sums that stay in registers. Included inside the
// region that selects the instruction set and an unnamed namespace, after the other includes.

struct Word {
  uint8_t bytes[4];
};

// Adds the products of the word at x and two vectors of words, of pairs of 16-bit numbers or of
// four bytes, of which those of b have no sign. Where all registers are in use gcc 12 would have
// several words or products at a time, and move sums to memory and back for that.
inline __attribute__((always_inline)) void add_pairs(__m256i& left, __m256i& right, __m256i b0,
                                                     __m256i b1, const uint8_t* x) {
  __m256i word, products;
  asm("vpbroadcastd %4, %2\n\t"
      "vpmaddwd %2, %5, %3\n\t"
      "vpmaddwd %2, %6, %2\n\t"
      "vpaddd %3, %0, %0\n\t"
      "vpaddd %2, %1, %1"
      : "+x"(left), "+x"(right), "=&x"(word), "=&x"(products)
      : "m"(*reinterpret_cast<const Word*>(x)), "x"(b0), "x"(b1));
}
inline __attribute__((always_inline)) void add_bytes(__m256i& left, __m256i& right, __m256i b0,
                                                     __m256i b1, const uint8_t* x) {
  __m256i word, products;
  asm("vpbroadcastd %4, %2\n\t"
      "vpmaddubsw %2, %5, %3\n\t"
      "vpmaddubsw %2, %6, %2\n\t"
      "vpaddw %3, %0, %0\n\t"
      "vpaddw %2, %1, %1"
      : "+x"(left), "+x"(right), "=&x"(word), "=&x"(products)
      : "m"(*reinterpret_cast<const Word*>(x)), "x"(b0), "x"(b1));
}
