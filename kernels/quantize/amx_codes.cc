// Products of codes on AMX tiles, 32 x 32 results at a time. 64 codes of 16 rows of x are a tile,
// and so are those of 16 columns of w; one instruction multiplies them. What a piece leaves in
// tiles, sums in 32 bits, goes through memory to registers, where it is scaled and added to C.
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12's own conversions start from a register that they never read.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <hwy/base.h>
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/amx_tiles.h"
#include "kernels/quantize/code_kernel.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl")
namespace ds::kernels {
namespace {

#include "kernels/quantize/avx512_codes-inl.h"
#include "kernels/quantize/code_tile-inl.h"

struct AmxOp : Avx512Op<true> {
  static constexpr int64_t kRows = 32, kTileRows = 16;
  static constexpr bool kTiles = true;
  template <int64_t kPiece>
  static constexpr int64_t kTileCodes = kPiece < 64 ? kPiece : 64;

  // A piece is as many tiles as hold its codes, one after the other, each of all rows.
  template <int64_t kPiece>
  static void pack_row_codes(const int8_t* codes, int64_t stride, int64_t width, uint8_t* to) {
    constexpr int64_t kTile = kTileCodes<kPiece>;
    constexpr auto kBytes = static_cast<__mmask64>(~uint64_t{0} >> (64 - kTile));
    for (int64_t k = 0; k < kPiece; k += kTile) {
      for (int64_t i = 0; i < kRows; ++i, to += kTile) {
        const __m512i row = i < width ? _mm512_maskz_loadu_epi8(kBytes, codes + i * stride + k)
                                      : _mm512_setzero_si512();
        _mm512_mask_storeu_epi8(to, kBytes, row);
      }
    }
  }

  using Sums = int32_t[4][kTileRows * kLanes];

  // The sums of a piece, scaled and added to the 16 x 16 results of a tile.
  template <class Tile>
  static inline __attribute__((always_inline)) void add_tile(const int32_t* sums, const uint8_t* a,
                                                             const uint8_t* b, int64_t row,
                                                             int64_t column, float* c, bool first) {
    const auto* const rows =
        reinterpret_cast<const typename Tile::Rows*>(a + kRows * Tile::kCodes)->scales + row;
    const auto* const columns =
        reinterpret_cast<const typename Tile::Columns*>(b + kColumns * Tile::kCodes)->scales;
    const __m512 scale = load(columns + column);
    c += row * kColumns + column;
#pragma GCC unroll 16
    for (int64_t i = 0; i < kTileRows; ++i) {
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + i * kLanes));
      float* const to = c + i * kColumns;
      store(to, multiply_add(sum, multiply(broadcast(rows[i]), scale), first ? zero() : load(to)));
    }
  }

  // Sums of a piece are scaled while the next one is multiplied, some tiles of them beside each
  // step of it: a store that followed its products at once would wait for them, and what comes
  // behind it, too. A panel of rows meets one of columns after the other.
  template <class Tile>
  static void panel(const uint8_t* a, const uint8_t* b, int64_t pieces, float* c, bool first,
                    gemm::ResultsAhead results) {
    constexpr int64_t kPiece = Tile::kCodes, kTile = kTileCodes<kPiece>;  // a code is a byte
    constexpr int64_t kRowStep = kRows * Tile::kPieceBytes,
                      kColumnStep = kColumns * Tile::kPieceBytes;
    constexpr int64_t kSteps = kPiece / kTile, kTilesBeside = 4 / kSteps;
    static_assert(kSteps * kTilesBeside == 4);
    alignas(64) Sums sums[2];
    const auto multiply = [&](int64_t step) __attribute__((always_inline)) {
      const uint8_t *const rows = a + step * kTile * kRows, *const columns =
                                                                b + step * kTile * kColumns;
      amx::load_and_add_product<amx::Int8Product, amx::Kept::kLeft>(
          {rows, rows + kTileRows * kTile, kTile},
          {columns, columns + kLanes * kWord, kColumns * kWord});
    };
    const auto add = [&](int64_t tile, int64_t piece) __attribute__((always_inline)) {
      add_tile<Tile>(sums[piece % 2][tile], a - kRowStep, b - kColumnStep, tile / 2 * kTileRows,
                     tile % 2 * kLanes, c, first && piece == 0);
    };
    for (int64_t piece = 0; piece < pieces; ++piece) {
      amx::zero_sums();
#pragma GCC unroll 4
      for (int64_t step = 0; step < kSteps; ++step) {
        multiply(step);
        results.fetch_some();
        if (piece == 0) continue;
#pragma GCC unroll 4
        for (int64_t tile = 0; tile < kTilesBeside; ++tile) {
          add(step * kTilesBeside + tile, piece - 1);
        }
      }
      Sums& to = sums[piece % 2];
      amx::store<0>(to[0]);
      amx::store<1>(to[1]);
      amx::store<2>(to[2]);
      amx::store<3>(to[3]);
      a += kRowStep;
      b += kColumnStep;
    }
    for (int64_t tile = 0; tile < 4; ++tile) add(tile, pieces - 1);
  }
};

}  // namespace

const CodeKernel& amx_code_kernel(int64_t piece, bool minima) {
  static constexpr auto kKernels = code_kernels<AmxOp>();
  return kKernels[code_piece_index(piece)][minima ? 1 : 0];
}

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
