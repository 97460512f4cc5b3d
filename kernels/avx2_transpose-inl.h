// Included inside the region that selects AVX2 and an unnamed namespace, after the other includes.

// Eight numbers of each of eight rows to eight rows of eight.
inline __attribute__((always_inline)) void transpose_8x8(__m256 (&r)[8]) {
  __m256 pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    pairs[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256 *const low = pairs + 4 * i, *const high = low + 2;
    fours[4 * i] = _mm256_shuffle_ps(low[0], high[0], 0x44);
    fours[4 * i + 1] = _mm256_shuffle_ps(low[0], high[0], 0xEE);
    fours[4 * i + 2] = _mm256_shuffle_ps(low[1], high[1], 0x44);
    fours[4 * i + 3] = _mm256_shuffle_ps(low[1], high[1], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x20);
    r[4 + i] = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x31);
  }
}
