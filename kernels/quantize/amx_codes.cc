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

#include "kernels/amx_instructions.h"
#include "kernels/quantize/code_kernel.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl")
namespace ds::kernels {
namespace {

#include "kernels/quantize/avx512_codes-inl.h"
#include "kernels/quantize/code_tile-inl.h"

struct AmxOp : Avx512Op<true> {
  static constexpr int64_t kRows = 16;
  static constexpr bool kTiles = true;
  static constexpr int kSums = 4;  // tiles of them
  template <int64_t kPiece>
  static constexpr int64_t kTileCodes = kPiece < 64 ? kPiece : 64;

  // A piece is as many tiles as hold its codes, one after the other.
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

  // The products of a piece of 16 columns, into one of four tiles.
  template <int kSum, int64_t kPiece>
  static inline __attribute__((always_inline)) void multiply_piece(const uint8_t* a,
                                                                   const uint8_t* b) {
    constexpr int64_t kTile = kTileCodes<kPiece>;
    const auto multiply = [&](auto set, int64_t k) __attribute__((always_inline)) {
      amx::load<4 + set>(a + k * kRows, kTile);
      amx::load<6 + set>(b + k * kColumns, kColumns * kWord);
      amx::Int8Product::add<kSum, 4 + set, 6 + set>();
    };
    amx::zero<kSum>();
    if constexpr (kPiece == kTile) {
      multiply(std::integral_constant<int, kSum % 2>(), 0);
    } else {
      static_assert(kPiece % (2 * kTile) == 0);
      for (int64_t k = 0; k < kPiece; k += 2 * kTile) {
        multiply(std::integral_constant<int, 0>(), k);
        multiply(std::integral_constant<int, 1>(), k + kTile);
      }
    }
  }

  template <class Tile, size_t... kRow>
  static inline __attribute__((always_inline)) void half_panel(std::index_sequence<kRow...>,
                                                               const uint8_t* a, const uint8_t* b,
                                                               int64_t pieces, int64_t column,
                                                               float* c, bool first) {
    constexpr int64_t kPiece = Tile::kCodes;  // a code is a byte
    constexpr int64_t kRowStep = kRows * Tile::kPieceBytes,
                      kColumnStep = kColumns * Tile::kPieceBytes;
    alignas(64) int32_t sums[kSums][kRows * kLanes];
    __m512 r[kRows];
    if (first) {
      ((r[kRow] = zero()), ...);
    } else {
      ((r[kRow] = load(c + kRow * kColumns)), ...);
    }
    const auto start = [&](auto sum, int64_t piece) __attribute__((always_inline)) {
      multiply_piece<sum, kPiece>(a + piece * kRowStep, b + piece * kColumnStep + column * kWord);
    };
    const auto add = [&](auto sum, int64_t piece) __attribute__((always_inline)) {
      const uint8_t *const from_a = a + piece * kRowStep, *const from_b = b + piece * kColumnStep;
      const auto& rows = *reinterpret_cast<const typename Tile::Rows*>(from_a + kRows * kPiece);
      const auto& columns =
          *reinterpret_cast<const typename Tile::Columns*>(from_b + kColumns * kPiece);
      const __m512 scale = load(columns.scales + column);
      ((r[kRow] = multiply_add(_mm512_cvtepi32_ps(_mm512_load_si512(sums[sum] + kRow * kLanes)),
                               multiply(broadcast(rows.scales[kRow]), scale), r[kRow])),
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

  template <class Tile>
  static void panel(const uint8_t* a, const uint8_t* b, int64_t pieces, float* c, bool first) {
    for (int64_t column = 0; column < kColumns; column += kLanes) {
      half_panel<Tile>(std::make_index_sequence<kRows>(), a, b, pieces, column, c + column, first);
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
