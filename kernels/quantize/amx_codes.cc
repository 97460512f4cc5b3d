// Products of codes on AMX tiles. A piece of 16 rows of x is a tile, and so is that of 16 columns
// of w; one instruction multiplies them. What it leaves, 16 x 16 sums in a tile of its own, goes
// through memory to registers that hold the same part of C, where it is scaled and added. While
// the sums of a piece are scaled, those of the next four are on their way.
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

  // ---- pieces of one tile: 16 x 16 results at a time, which stay in registers ----
  static constexpr int kSums = 4;  // tiles of sums, each of a piece of its own

  template <class Tile, size_t... kRow>
  static inline __attribute__((always_inline)) void quarter(std::index_sequence<kRow...>,
                                                            const uint8_t* a, const uint8_t* b,
                                                            int64_t pieces, int64_t row,
                                                            int64_t column, float* c, bool first) {
    constexpr int64_t kPiece = Tile::kCodes;  // a code is a byte
    constexpr int64_t kRowStep = kRows * Tile::kPieceBytes,
                      kColumnStep = kColumns * Tile::kPieceBytes;
    alignas(64) int32_t sums[kSums][kTileRows * kLanes];
    __m512 r[kTileRows];
    if (first) {
      ((r[kRow] = zero()), ...);
    } else {
      ((r[kRow] = load(c + kRow * kColumns)), ...);
    }
    const auto start = [&](auto sum, int64_t piece) __attribute__((always_inline)) {
      amx::zero<sum>();
      amx::load<4 + sum % 2>(a + piece * kRowStep + row * kPiece, kPiece);
      amx::load<6 + sum % 2>(b + piece * kColumnStep + column * kWord, kColumns * kWord);
      amx::Int8Product::add<sum, 4 + sum % 2, 6 + sum % 2>();
    };
    const auto add = [&](auto sum, int64_t piece) __attribute__((always_inline)) {
      const uint8_t *const from_a = a + piece * kRowStep, *const from_b = b + piece * kColumnStep;
      const auto* const rows =
          reinterpret_cast<const typename Tile::Rows*>(from_a + kRows * kPiece)->scales + row;
      const auto& columns =
          *reinterpret_cast<const typename Tile::Columns*>(from_b + kColumns * kPiece);
      const __m512 scale = load(columns.scales + column);
      ((r[kRow] = multiply_add(_mm512_cvtepi32_ps(_mm512_load_si512(sums[sum] + kRow * kLanes)),
                               multiply(broadcast(rows[kRow]), scale), r[kRow])),
       ...);
    };
    // Products of a piece begin four pieces before they are scaled: a store that followed at once
    // would wait for them, and what comes behind it, too.
    const auto turn = [&](auto sum, int64_t piece) __attribute__((always_inline)) {
      const int64_t done = piece - kSums;
      if (done >= 0 && done < pieces) amx::store<sum>(sums[sum], kLanes * kWord);
      if (piece < pieces) start(sum, piece);
      if (done >= 0 && done < pieces) add(sum, done);
    };
    for (int64_t piece = 0; piece < pieces + kSums; piece += kSums) {
      turn(std::integral_constant<int, 0>(), piece);
      turn(std::integral_constant<int, 1>(), piece + 1);
      turn(std::integral_constant<int, 2>(), piece + 2);
      turn(std::integral_constant<int, 3>(), piece + 3);
    }
    (store(c + kRow * kColumns, r[kRow]), ...);
  }

  // ---- pieces of four tiles: 32 x 32 results at a time ----
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

  // Those of a piece are scaled while the next piece is multiplied: a tile's beside each step.
  template <class Tile>
  static void whole(const uint8_t* a, const uint8_t* b, int64_t pieces, float* c, bool first) {
    constexpr int64_t kPiece = Tile::kCodes, kTile = kTileCodes<kPiece>;
    constexpr int64_t kRowStep = kRows * Tile::kPieceBytes,
                      kColumnStep = kColumns * Tile::kPieceBytes;
    static_assert(kPiece == 4 * kTile);
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
      multiply(0);
      if (piece > 0) add(0, piece - 1);
      multiply(1);
      if (piece > 0) add(1, piece - 1);
      multiply(2);
      if (piece > 0) add(2, piece - 1);
      multiply(3);
      if (piece > 0) add(3, piece - 1);
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

  template <class Tile>
  static void panel(const uint8_t* a, const uint8_t* b, int64_t pieces, int64_t rows, float* c,
                    bool first) {
    if constexpr (Tile::kCodes > kTileCodes<Tile::kCodes>) {
      whole<Tile>(a, b, pieces, c, first);
    } else {
      for (int64_t row = 0; row < rows; row += kTileRows) {
        for (int64_t column = 0; column < kColumns; column += kLanes) {
          quarter<Tile>(std::make_index_sequence<kTileRows>(), a, b, pieces, row, column,
                        c + row * kColumns + column, first);
        }
      }
    }
  }
};

}  // namespace

const CodeKernel& amx_code_kernel(int64_t piece, bool minima) {
  static constexpr auto kKernels = code_kernels<AmxOp>();
  return kKernels[code_piece_index(piece)][minima ? 1 : 0];
}

}  // namespace ds::kernels
HWY_POP_ATTRIBUTES
