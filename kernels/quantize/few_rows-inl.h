// Products of few rows of codes with a panel of w, which is read as it lies: nothing is packed. One
// template for every instruction set, with the arithmetic of code_tile-inl.h and so its bits.
//
// Included inside the region that selects an instruction set, after the other includes. The file
// says how with an Op of its own, in an unnamed namespace:
//
//   struct Op {
//     static constexpr int64_t kRowsAtOnce;  // whose sums stay in registers
//     // What few_sums adds to codes of 8 bits, and of 4 without minima.
//     static constexpr int32_t kExcess8, kExcess4;
//     using Panel;                           // 16 numbers in fp32, of the rows of a panel
//     static Panel zero_panel(), widen_panel(const bfloat16*);
//     static void store_panel(float*, Panel);
//     // c + sums * (row * columns), and c + row * columns.
//     static Panel add_scaled(Panel sums, float row, Panel columns, Panel c);
//     static Panel add_shifted(float row, Panel columns, Panel c);
//     // finish(row, its sums as a Panel).
//     template <int kBits, bool kMinima, size_t... kRow, class Finish>
//     static void few_sums(std::index_sequence<kRow...>, const CodePiece&, const Finish& finish);
//   };

// Elements of a panel that share a scale, and of rows of x.
struct CodePiece {
  const uint8_t* codes;   // of the panel
  int64_t elements;       // a multiple of 8
  int64_t ahead;          // bytes to what is fetched meanwhile
  const int8_t* x;        // of the first row
  int64_t stride;         // between rows
  const int32_t* starts;  // of sums
};

template <class Op, int kBits, bool kMinima, size_t... kRow>
void multiply_rows(std::index_sequence<kRow...> all_rows, const FewCodeRows& call, int64_t row) {
  // That of this file's Op: the rows may have been encoded for another that packs.
  constexpr int32_t kExcess = kBits == 8 ? Op::kExcess8 : kMinima ? 0 : Op::kExcess4;
  const QuantizedMatrix& w = *call.w;
  const RowCodes& rows = *call.rows;
  const uint8_t* const codes = w.codes + call.panel * w.panel_bytes();
  const bfloat16* const scales = w.scales + call.panel * w.groups() * kPanelRows;
  const bfloat16* const minima =
      kMinima ? w.minimum + call.panel * w.groups() * kPanelRows : nullptr;
  // The panel that follows is fetched meanwhile, its scales too, which lie alone.
  const int64_t ahead = w.panel_bytes(), numbers_ahead = w.groups() * kPanelRows;
  const int64_t row_codes = rows.pieces * rows.piece;
  const auto group_of = [&](int64_t piece) {
    return piece * rows.piece / w.group_length() * kPanelRows;
  };
  const auto place = [&](size_t i, int64_t piece) {
    return (row + static_cast<int64_t>(i)) * rows.pieces + piece;
  };
  typename Op::Panel c[sizeof...(kRow)] = {(static_cast<void>(kRow), Op::zero_panel())...};
  for (int64_t first = 0; first < rows.pieces;) {
    const int64_t last = call.cut.end_of_step(first * rows.piece, row_codes) / rows.piece;
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t k = piece * rows.piece, group = group_of(piece);
      __builtin_prefetch(scales + group + numbers_ahead);
      const int32_t starts[] = {-kExcess * rows.sums[place(kRow, piece)]...};
      const auto scale = Op::widen_panel(scales + group);
      const auto finish = [&](size_t i, typename Op::Panel sums) __attribute__((always_inline)) {
        c[i] = Op::add_scaled(sums, rows.scales[place(i, piece)], scale, c[i]);
      };
      Op::template few_sums<kBits, kMinima>(all_rows,
                                            {.codes = codes + k * kPanelRows * kBits / 8,
                                             .elements = std::min(rows.piece, w.padded_k() - k),
                                             .ahead = ahead,
                                             .x = rows.codes + row * row_codes + k,
                                             .stride = row_codes,
                                             .starts = starts},
                                            finish);
    }
    for (int64_t piece = first; kMinima && piece < last; ++piece) {
      const int64_t group = group_of(piece);
      __builtin_prefetch(minima + group + numbers_ahead);
      const auto minimum = Op::widen_panel(minima + group);
      const auto shift = [&](size_t i) __attribute__((always_inline)) {
        const int64_t at = place(i, piece);
        return rows.scales[at] * static_cast<float>(rows.sums[at]);
      };
      ((c[kRow] = Op::add_shifted(shift(kRow), minimum, c[kRow])), ...);
    }
    first = last;
  }
  (Op::store_panel(call.sums + (row + static_cast<int64_t>(kRow)) * kPanelRows, c[kRow]), ...);
}

template <class Op, int kBits, bool kMinima, size_t... kLess>
void multiply_panel(std::index_sequence<kLess...>, const FewCodeRows& call) {
  using Multiply = void (*)(const FewCodeRows&, int64_t);
  static constexpr Multiply kTable[] = {[](const FewCodeRows& panel, int64_t row) {
    multiply_rows<Op, kBits, kMinima>(std::make_index_sequence<kLess + 1>(), panel, row);
  }...};
  constexpr int64_t kAtOnce = sizeof...(kLess);
  for (int64_t row = 0; row < call.rows->rows; row += kAtOnce) {
    kTable[std::min(kAtOnce, call.rows->rows - row) - 1](call, row);
  }
}

template <class Op>
void multiply_few_rows(const FewCodeRows& call) {
  constexpr std::make_index_sequence<Op::kRowsAtOnce> kRows;
  call.w->bits == 8 ? multiply_panel<Op, 8, false>(kRows, call)
  : call.w->minima  ? multiply_panel<Op, 4, true>(kRows, call)
                    : multiply_panel<Op, 4, false>(kRows, call);
}
