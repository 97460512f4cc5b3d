// What an implementation of the blocked product consists of: how its operands are packed, and the
// loop that multiplies packed blocks. matmul.cc drives them; each *_kernel function below lives in
// a file of its own, compiled for one instruction set.
//
// A is packed in panels of `rows` rows, B in panels of `columns` columns. A panel is k-major: its
// first `depth` steps of k, padded with zeros to a multiple of `group`, then nothing else, so that
// a block [k, k + kc) of a panel is contiguous when k is a multiple of `group`. What lies within a
// group is the kernel's own business.
#pragma once

#include <cstdint>

namespace ds::kernels::gemm {

// One panel: `width` rows of op(A) or columns of op(B), at most the panel's width (the rest becomes
// zero), `depth` of k. Element (i, k) lies at from[i * stride + k] for pack_rows, whose source runs
// along k, and at from[k * stride + i] for pack_columns. Operands whose elements have no bytes of
// their own are packed by the place: `from` is then all of the operand.
struct PackCall {
  const void* from = nullptr;
  int64_t stride = 0;  // elements
  int64_t width = 0, depth = 0;
  void* to = nullptr;
  int64_t index = 0, k = 0;  // the place: the first row or column, and the first step of k
};

// Asks for lines of memory, into the second-level cache. Inline, since compilers drop calls of
// functions that do nothing else.
__attribute__((always_inline)) inline void fetch_lines(const char* first, int64_t count,
                                                       int64_t distance) {
  constexpr int kForReading = 0, kSecondLevel = 2;
  for (int64_t i = 0; i < count; ++i) {
    __builtin_prefetch(first + i * distance, kForReading, kSecondLevel);
  }
}

// Lines where rows of results will be: `count` of each row, and bytes from row to row.
struct ResultLines {
  const char* first = nullptr;
  int64_t row = 0, count = 0;
};

// Asks for those of some rows at a time, in so many steps: fetched at once, they hold up other
// loads.
class ResultsAhead {
 public:
  __attribute__((always_inline)) ResultsAhead(const ResultLines& lines, int64_t rows, int64_t steps)
      : next_(lines.first),
        end_(lines.first + rows * lines.row),
        row_(lines.row),
        count_(lines.count),
        at_once_((rows + steps - 1) / steps) {}
  __attribute__((always_inline)) void fetch_some() {
    for (int64_t i = 0; i < at_once_ && next_ < end_; ++i, next_ += row_) {
      fetch_lines(next_, count_, 64);
    }
  }

 private:
  const char *next_, *end_;
  int64_t row_, count_, at_once_;
};

// Consecutive row panels, which have `rows` rows together, times one column panel, over `depth`
// (padded) steps of k. Kernels with `unpacked_rows` find row i of A, group g of k, at
// a + i * a_row + g * a_group.
struct MultiplyCall {
  const void* a = nullptr;
  int64_t a_panel = 0;  // bytes from one row panel to the next
  int64_t a_row = 0, a_group = 0;
  const void* b = nullptr;
  // [rows, columns], dense; 64-byte aligned. There is room for whole panels, and a kernel may write
  // all of it.
  float* c = nullptr;
  int64_t rows = 0, depth = 0;
  bool first = false;  // C is written, not added to
  // So many rows of A, next_row bytes apart, that are multiplied soon: kernels on tiles ask for a
  // line of each beside the products of a group. Others do not look at them.
  const void* next = nullptr;
  int64_t next_rows = 0, next_row = 0;
  // Of a call of one row panel: a kernel that fetches_results asks for these beside its products;
  // null: none.
  ResultLines results = {};
};

// The plain end of a product: c = sums + bias in the type of both; bias may be null. Strides in
// elements.
struct StoreCall {
  const float* sums = nullptr;
  int64_t sums_stride = 0;
  const void* bias = nullptr;
  void* c = nullptr;
  int64_t c_stride = 0;
  int64_t rows = 0, columns = 0;  // columns: at most 32
};

struct Packing {
  void (*pack_rows)(const PackCall&);
  void (*pack_columns)(const PackCall&);
};

struct Kernel {
  int64_t rows = 0, columns = 0;  // of one block of C
  int64_t group = 1;
  int64_t depth = 0;          // kc: what `multiply` takes at a time
  int64_t element_bytes = 4;  // of the operands as they come
  int64_t packed_bytes = 4;   // of an element in a panel
  int64_t scale_bytes = 0;    // of a row or column of a panel, behind each group: what scales it
  // For the columns of B of a task, of which there are at most task_columns. With tiles more than
  // half of a second-level cache of 2 MiB measured slower.
  int64_t cache_bytes = 640 << 10;
  // Where A has one block of rows alone: packed columns are read once, soon after they are packed.
  int64_t cache_bytes_of_few_rows = 640 << 10;
  int64_t task_columns = 512;
  int64_t round_depth = 2048;  // of k at a time where k is longer than twice that
  // Rows of operands that lie across k are packed so many at a time, for all panels: a multiple of
  // `group`. Few, so that panels narrower than a line find it again in the first-level cache, where
  // rows that are a large power of two apart have few places.
  int64_t chunk = 128;
  int64_t tile_bytes = 0;  // of the AmxTiles that `multiply` needs; 0: none
  // Bytes of a row of A in a packed group, of kernels that also take the rows of an operand along k
  // as they lie, where there are whole groups and whole panels of them. 0: packed ones only. Where
  // nothing of A is packed, narrower tasks with longer sums pay.
  int64_t unpacked_rows = 0;
  int64_t round_depth_in_place = 0;
  // Whether A that lies along k, or across it, is multiplied one panel of rows at a time, over all
  // of a round's depth: then sums stay in tiles, and more of the cache is B's. Otherwise some
  // panels and `depth` steps at a time.
  bool whole_depth_along = false, whole_depth_across = false;
  // Where so many tasks or more, side by side, would each pack the same rows of A, these are packed
  // once, before. 0: never.
  int64_t packs_a_once_from = 0;
  // Whether it asks for MultiplyCall::results; otherwise that is done at once, before its products.
  bool fetches_results = false;
  // The most rows of A that dot products (few_rows.h) multiply faster, where both lie along k.
  int64_t few_rows = 0;
  Packing a, b;
  void (*multiply)(const MultiplyCall&) = nullptr;
  // Plain ends in bf16, of CPUs that convert in one instruction, and in fp32; or null.
  void (*store_bfloat16)(const StoreCall&) = nullptr;
  void (*store_float)(const StoreCall&) = nullptr;
};

// Each describes a kernel; whether this CPU can run it is matmul.cc's to ask.
const Kernel& amx_bfloat16_kernel();
const Kernel& amx_float32_kernel();
const Kernel& avx512_bfloat16_kernel();
void store_bfloat16_avx512(const StoreCall& call);
const Kernel& avx512_float_kernel();
void store_float_avx512(const StoreCall& call);
const Kernel& avx2_float_kernel();
const Kernel& portable_float_kernel();

}  // namespace ds::kernels::gemm
