// Products of codes in a block of C: the sums of a piece are integers in registers, then scaled and
// added to C in fp32. One template for every instruction set that multiplies codes, so that all of
// them give the same bits.
//
// Included inside the region that selects an instruction set, after the other includes. The file
// says how with an Op of its own, in an unnamed namespace:
//
//   struct Op {
//     static constexpr int64_t kRows, kColumns, kLanes;  // kColumns = 2 kLanes
//     static constexpr int64_t kCodeBytes;               // of a packed code
//     // What packing adds to codes of 8 bits, and of 4 without minima.
//     static constexpr int32_t kExcess8, kExcess4;
//     static constexpr int64_t kCacheBytes;              // gemm::Kernel::cache_bytes
//     static constexpr int64_t kFewRows;                 // CodeKernel::few_rows, multiply_few
//     static constexpr MultiplyFewCodeRows kMultiplyFew;
//     using Floats;
//     static Floats zero(), load(const float*), broadcast(float);
//     static void store(float*, Floats);
//     static Floats multiply(Floats, Floats), multiply_add(Floats a, Floats b, Floats sum);
//     // Whether there are tiles (kernels/amx_instructions.h), and the codes of a row of one.
//     static constexpr bool kTiles;
//     template <int64_t kPiece>
//     static constexpr int64_t kTileCodes;
//     // With tiles: the pieces of a panel of rows times one of columns, added to C or its first.
//     // Tile is the CodeTile; results are asked for a tile's step at a time.
//     template <class Tile>
//     static void panel(const uint8_t* a, const uint8_t* b, int64_t pieces, float* c, bool first,
//                       gemm::ResultsAhead results);
//     // Without: the sums of a piece, each row's from starts[row] on:
//     // finish(row, left half, right half), as fp32.
//     template <int64_t kPiece, size_t... kRow, class Finish>
//     static void sums(std::index_sequence<kRow...>, const uint8_t* a, const uint8_t* b,
//                      const int32_t* starts, const Finish& finish);
//     // A piece of a panel: the codes of `width` rows of x, which lie `stride` apart, and those of
//     // the 16 rows of panel `index` of w from element k on as columns [column, +16). Zero for
//     // rows from `width` on, elements from padded_k on, and a panel of index -1.
//     template <int64_t kPiece>
//     static void pack_row_codes(const int8_t* codes, int64_t stride, int64_t width, uint8_t* to);
//     template <int64_t kPiece>
//     static void pack_panel_codes(const QuantizedMatrix& w, int64_t index, int64_t k, uint8_t* to,
//                                  int64_t column);
//     static Floats widen(const bfloat16*);
//   };

// Of each piece the codes of all rows or columns of a panel, then:
template <int64_t kRows>
struct RowScales {
  float scales[kRows];
  int32_t starts[kRows];
  float shifts[kRows];  // what minima are multiplied by
};
template <int64_t kColumns>
struct ColumnScales {
  float scales[kColumns];
  float minima[kColumns];
  float unused[kColumns];
};
inline constexpr int64_t kScaleBytes = 12;  // of a row or column

template <class Op, int64_t kPiece>
struct CodeTile {
  static constexpr int64_t kRows = Op::kRows, kColumns = Op::kColumns, kLanes = Op::kLanes;
  static constexpr int64_t kCodes = kPiece * Op::kCodeBytes;  // bytes of a row or column
  static constexpr int64_t kPieceBytes = kCodes + kScaleBytes;
  using Rows = RowScales<kRows>;
  using Columns = ColumnScales<kColumns>;
  static_assert(sizeof(Rows) == kScaleBytes * kRows);
  static_assert(sizeof(Columns) == kScaleBytes * kColumns);

  // ---- packing ----
  static void pack_x(const gemm::PackCall& call) {
    const auto& rows = *static_cast<const RowCodes*>(call.from);
    auto* to = static_cast<uint8_t*>(call.to);
    for (int64_t k = 0; k < call.depth; k += kPiece, to += kRows * kPieceBytes) {
      const int64_t first = call.index * rows.pieces + (call.k + k) / kPiece;
      auto& scales = *reinterpret_cast<Rows*>(to + kRows * kCodes);
      Op::template pack_row_codes<kPiece>(rows.codes + first * kPiece, rows.pieces * kPiece,
                                          call.width, to);
      for (int64_t i = 0; i < kRows; ++i) {
        const int64_t at = first + i * rows.pieces;
        const bool exists = i < call.width;
        scales.scales[i] = exists ? rows.scales[at] : 0;
        scales.starts[i] = exists ? -rows.excess * rows.sums[at] : 0;
        scales.shifts[i] = exists ? rows.scales[at] * static_cast<float>(rows.sums[at]) : 0;
      }
    }
  }

  template <bool kMinima>
  static void pack_w(const gemm::PackCall& call) {
    const auto& w = *static_cast<const QuantizedMatrix*>(call.from);
    auto* to = static_cast<uint8_t*>(call.to);
    const int64_t first = call.index / kPanelRows;
    for (int64_t k = 0; k < call.depth; k += kPiece, to += kColumns * kPieceBytes) {
      const int64_t at = call.k + k;
      auto& scales = *reinterpret_cast<Columns*>(to + kColumns * kCodes);
      for (int64_t column = 0; column < kColumns; column += kPanelRows) {
        const int64_t panel = first + column / kPanelRows;
        const bool exists = column < call.width;
        Op::template pack_panel_codes<kPiece>(w, exists ? panel : -1, at, to, column);
        const int64_t scale = (panel * w.groups() + at / w.group_length()) * kPanelRows;
        for (int64_t l = 0; l < kPanelRows; l += kLanes) {
          const auto numbers = [&](const bfloat16* from) __attribute__((always_inline)) {
            return exists ? Op::widen(from + scale + l) : Op::zero();
          };
          Op::store(scales.scales + column + l, numbers(w.scales));
          if constexpr (kMinima) Op::store(scales.minima + column + l, numbers(w.minimum));
        }
      }
    }
  }

  // ---- products ----
  // A piece's sums for the first sizeof...(kRow) rows of a panel, scaled and added to C.
  template <size_t... kRow>
  static inline __attribute__((always_inline)) void multiply_piece(
      std::index_sequence<kRow...> panel_rows, const uint8_t* a, const uint8_t* b, float* c,
      bool first) {
    const auto& rows = *reinterpret_cast<const Rows*>(a + kRows * kCodes);
    const auto& columns = *reinterpret_cast<const Columns*>(b + kColumns * kCodes);
    using Floats = typename Op::Floats;
    const auto finish = [&](size_t i, Floats left, Floats right) __attribute__((always_inline)) {
      float* const out = c + i * kColumns;
      const Floats scale = Op::broadcast(rows.scales[i]);
      Floats c0 = first ? Op::zero() : Op::load(out);
      Floats c1 = first ? Op::zero() : Op::load(out + kLanes);
      c0 = Op::multiply_add(left, Op::multiply(scale, Op::load(columns.scales)), c0);
      c1 = Op::multiply_add(right, Op::multiply(scale, Op::load(columns.scales + kLanes)), c1);
      Op::store(out, c0);
      Op::store(out + kLanes, c1);
    };
    Op::template sums<kPiece>(panel_rows, a, b, rows.starts, finish);
  }

  // The pieces of one panel of rows, for each number of rows that a last panel may have.
  template <size_t kCount>
  static void panel(const uint8_t* a, const uint8_t* b, int64_t pieces, float* c, bool first) {
    for (int64_t piece = 0; piece < pieces; ++piece) {
      multiply_piece(std::make_index_sequence<kCount>(), a, b, c, first && piece == 0);
      a += kRows * kPieceBytes;
      b += kColumns * kPieceBytes;
    }
  }
  using Panel = decltype(&panel<1>);
  template <size_t... kLess>
  static Panel panel_of(std::index_sequence<kLess...>, int64_t rows) {
    static constexpr Panel kTable[] = {panel<kLess + 1>...};
    return kTable[rows - 1];
  }

  // What minima add: of each piece, theirs times the sum of x.
  static void add_minima(const uint8_t* a, const uint8_t* b, int64_t pieces, int64_t rows,
                         float* c) {
    const auto* const shifts = reinterpret_cast<const Rows*>(a + kRows * kCodes)->shifts;
    const auto* const minima = reinterpret_cast<const Columns*>(b + kColumns * kCodes)->minima;
    constexpr int64_t kRowStep = kRows * kPieceBytes / 4, kColumnStep = kColumns * kPieceBytes / 4;
    for (int64_t i = 0; i < rows; ++i, c += kColumns) {
      typename Op::Floats c0 = Op::load(c), c1 = Op::load(c + kLanes);
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const auto shift = Op::broadcast(shifts[piece * kRowStep + i]);
        const float* const from = minima + piece * kColumnStep;
        c0 = Op::multiply_add(shift, Op::load(from), c0);
        c1 = Op::multiply_add(shift, Op::load(from + kLanes), c1);
      }
      Op::store(c, c0);
      Op::store(c + kLanes, c1);
    }
  }

  template <bool kMinima>
  static void multiply(const gemm::MultiplyCall& call) {
    const auto* a = static_cast<const uint8_t*>(call.a);
    const auto* const b = static_cast<const uint8_t*>(call.b);
    float* c = call.c;
    for (int64_t row = 0; row < call.rows; row += kRows) {
      const int64_t rows = call.rows - row < kRows ? call.rows - row : kRows;
      if constexpr (Op::kTiles) {
        Op::template panel<CodeTile>(
            a, b, call.depth / kPiece, c, call.first,
            gemm::ResultsAhead(call.results, rows, call.depth / Op::template kTileCodes<kPiece>));
      } else {
        panel_of(std::make_index_sequence<kRows>(), rows)(a, b, call.depth / kPiece, c, call.first);
      }
      if constexpr (kMinima) add_minima(a, b, call.depth / kPiece, rows, c);
      a += call.a_panel;
      c += kRows * kColumns;
    }
  }

  static constexpr int64_t tile_bytes() {
    if constexpr (Op::kTiles) return Op::template kTileCodes<kPiece>;
    return 0;
  }

  template <bool kMinima>
  static constexpr CodeKernel kernel() {
    return {.piece = kPiece,
            .excess_of_8 = Op::kExcess8,
            .excess_of_4 = Op::kExcess4,
            .few_rows = Op::kFewRows,
            .multiply_few = Op::kMultiplyFew,
            .product = {.rows = kRows,
                        .columns = kColumns,
                        .group = kPiece,
                        .depth = 512,
                        .element_bytes = 0,
                        .packed_bytes = Op::kCodeBytes,
                        .scale_bytes = kScaleBytes,
                        .cache_bytes = Op::kCacheBytes,
                        .tile_bytes = tile_bytes(),
                        .whole_depth_along = Op::kTiles && !kMinima,
                        .fetches_results = Op::kTiles,
                        .a = {pack_x, nullptr},
                        .b = {pack_w<kMinima>, nullptr},
                        .multiply = multiply<kMinima>}};
  }
};

// For every length of pieces, without minima and with them.
template <class Op>
constexpr auto code_kernels() {
  return for_code_pieces([](auto piece) {
    using Tile = CodeTile<Op, decltype(piece)::value>;
    return std::array{Tile::template kernel<false>(), Tile::template kernel<true>()};
  });
}
