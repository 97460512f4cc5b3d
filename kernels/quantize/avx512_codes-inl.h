// What AVX-512 packs and scales of products of codes, for every instruction that multiplies them.
// Included inside the region that selects an instruction set, before code_tile-inl.h.

// Weights as signed codes, or as unsigned ones: codes plus 128 of 8 bits, plus 8 of 4.
template <bool kSigned>
struct Avx512Op {
  static constexpr int64_t kColumns = 32, kLanes = 16;
  static constexpr int64_t kCodeBytes = 1;
  static constexpr int64_t kWord = 4,
                           kBlock = 8;  // codes of a word; those that are in an order of their own
  static constexpr int32_t kExcess8 = kSigned ? 0 : 128, kExcess4 = kSigned ? 0 : 8;
  static constexpr int64_t kCacheBytes = gemm::Kernel().cache_bytes;
  static constexpr int64_t kFewRows = kMostFewCodeRows;
  static constexpr MultiplyFewCodeRows kMultiplyFew = vnni_few_rows;
  using Floats = __m512;
  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
  static Floats broadcast(float v) { return _mm512_set1_ps(v); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats sum) { return _mm512_fmadd_ps(a, b, sum); }
  static Floats widen(const bfloat16* p) {
    const __m512i words =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  }

  // Eight elements of 16 rows of w as two vectors of words: elements 0, 4, 1, 5 and 2, 6, 3, 7.
  struct Words {
    __m512i first, second;
  };
  static Words words_of_4(const uint8_t* codes, bool minima) {
    const __m512i all = _mm512_loadu_si512(codes), low = _mm512_set1_epi8(15);
    const __m512i excess = _mm512_set1_epi8(kSigned && !minima ? 8 : 0);
    const auto make = [&](__m512i from) __attribute__((always_inline)) {
      const __m512i words = _mm512_and_si512(from, low);
      return kSigned ? _mm512_sub_epi8(words, excess) : words;
    };
    return {make(all), make(_mm512_srli_epi32(all, 4))};
  }
  static Words words_of_8(const uint8_t* codes) {
    const __m512i a = _mm512_loadu_si512(codes), b = _mm512_loadu_si512(codes + 64);
    // Lane q receives the bytes of rows 4 q to 4 q + 3, element by element, and turns them around.
    const __m512i begin = _mm512_setr_epi32(0, 16, 4, 20, 1, 17, 5, 21, 2, 18, 6, 22, 3, 19, 7, 23);
    const __m512i turn =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i sign = _mm512_set1_epi8(-128);
    const auto make = [&](__m512i from) __attribute__((always_inline)) {
      const __m512i words = _mm512_shuffle_epi8(_mm512_permutex2var_epi32(a, from, b), turn);
      return kSigned ? words : _mm512_xor_si512(words, sign);
    };
    return {make(begin), make(_mm512_add_epi32(begin, _mm512_set1_epi32(8)))};
  }

  template <int64_t kPiece>
  static void pack_panel_codes(const QuantizedMatrix& w, int64_t index, int64_t k, uint8_t* to,
                               int64_t column) {
    const uint8_t* const codes = w.codes + index * w.panel_bytes();
    for (int64_t e = 0; e < kPiece; e += kBlock) {
      Words words{_mm512_setzero_si512(), _mm512_setzero_si512()};
      if (index >= 0 && k + e < w.padded_k()) {
        const uint8_t* const block = codes + (k + e) * kPanelRows * w.bits / 8;
        words = w.bits == 8 ? words_of_8(block) : words_of_4(block, w.minima);
      }
      uint8_t* const out = to + (e * kColumns + column * kWord);
      _mm512_storeu_si512(out, words.first);
      _mm512_storeu_si512(out + kColumns * kWord, words.second);
    }
  }
};
