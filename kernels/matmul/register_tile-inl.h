// The product of packed panels in a block of C that is held in registers: each step of k loads one
// row of the panel of B and, for each row of C, broadcasts one word of the panel of A. One template
// for every instruction that adds products of words to lanes of 32 bits.
//
// Included inside the region that selects an instruction set, after the other includes. The file
// says what a word is with an Op of its own, in an unnamed namespace:
//
//   struct Op {
//     using Vector;
//     static constexpr int64_t kLanes;
//     static Vector zero();
//     static Vector load(const float*);
//     static void store(float*, Vector);
//     static Vector load_words(const uint32_t*), broadcast(const uint32_t*);
//     static Vector multiply_add(Vector sum, Vector a, Vector b);
//   };
//
// Sums are named by pack expansion, because gcc keeps an array that is indexed in a loop in memory.

// The first sizeof...(kRow) rows of a panel of kPanel.
template <class Op, int64_t kPanel, size_t... kRow>
inline __attribute__((always_inline)) void multiply_tile(std::index_sequence<kRow...>,
                                                         const uint32_t* a, const uint32_t* b,
                                                         int64_t words, float* c, bool first) {
  constexpr int64_t kRows = sizeof...(kRow), kColumns = 2 * Op::kLanes;
  typename Op::Vector left[kRows], right[kRows];
  if (first) {
    ((left[kRow] = right[kRow] = Op::zero()), ...);
  } else {
    ((left[kRow] = Op::load(c + kRow * kColumns)), ...);
    ((right[kRow] = Op::load(c + kRow * kColumns + Op::kLanes)), ...);
  }
  for (int64_t k = 0; k < words; ++k, a += kPanel, b += kColumns) {
    const typename Op::Vector b0 = Op::load_words(b), b1 = Op::load_words(b + Op::kLanes);
    const auto row = [&](size_t i) __attribute__((always_inline)) {
      const typename Op::Vector word = Op::broadcast(a + i);
      left[i] = Op::multiply_add(left[i], word, b0);
      right[i] = Op::multiply_add(right[i], word, b1);
    };
    (row(kRow), ...);
  }
  (Op::store(c + kRow * kColumns, left[kRow]), ...);
  (Op::store(c + kRow * kColumns + Op::kLanes, right[kRow]), ...);
}

// What multiplies 1, 2, ... kRows rows of a panel: a last panel of few rows need not cost what a
// full one does.
template <class Op, int64_t kRows, class Sequence = std::make_index_sequence<kRows>>
struct TileOfRows;
template <class Op, int64_t kRows, size_t... kLess>
struct TileOfRows<Op, kRows, std::index_sequence<kLess...>> {
  template <size_t kCount>
  static void rows(const uint32_t* a, const uint32_t* b, int64_t words, float* c, bool first) {
    multiply_tile<Op, kRows>(std::make_index_sequence<kCount>(), a, b, words, c, first);
  }
  using Multiply = decltype(&rows<1>);
  static constexpr Multiply kTable[] = {rows<kLess + 1>...};
};

// `kRows` rows of C, kWord steps of k in a word.
template <class Op, int64_t kRows, int64_t kWord>
void multiply_panels(const MultiplyCall& call) {
  const auto* a = static_cast<const char*>(call.a);
  float* c = call.c;
  for (int64_t row = 0; row < call.rows; row += kRows) {
    const int64_t rows = call.rows - row < kRows ? call.rows - row : kRows;
    TileOfRows<Op, kRows>::kTable[rows - 1](reinterpret_cast<const uint32_t*>(a),
                                            static_cast<const uint32_t*>(call.b),
                                            call.depth / kWord, c, call.first);
    a += call.a_panel;
    c += kRows * 2 * Op::kLanes;
  }
}
