#include "kernels/matmul/blocked.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/thread_pool.h"
#include "kernels/cpu.h"
#include "kernels/matmul/convert.h"
#include "kernels/matmul/scratch.h"

namespace ds::kernels::gemm {
namespace {

// Of A, packed together where k is taken in steps; they stay in the second-level cache.
constexpr int64_t kBlockRows = 128;
constexpr int64_t kLine = 64;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t multiple) { return divide_up(a, multiple) * multiple; }

// `total` in the fewest equal parts of at most `limit`, rounded up to a multiple.
int64_t equal_part(int64_t total, int64_t limit, int64_t multiple) {
  return std::min(round_up(divide_up(total, divide_up(total, limit)), multiple),
                  round_up(total, multiple));
}

// What a row or column of a panel takes, in bytes; depth is a multiple of the group.
int64_t packed_size(const Kernel& kernel, int64_t depth) {
  return depth * kernel.packed_bytes + depth / kernel.group * kernel.scale_bytes;
}

// Whether the kernel reads A where it lies, as far as whole panels of rows go.
bool reads_in_place(const Kernel& kernel, const BlockedProduct& p) {
  return kernel.unpacked_rows > 0 && p.a.packed_panel == 0 && p.a.along_k && !p.a.widened &&
         p.k % kernel.group == 0;
}

bool takes_whole_depth(const Kernel& kernel, const Operand& a) {
  return a.along_k ? kernel.whole_depth_along : kernel.whole_depth_across;
}

// Rounds of about `round`.
DepthCut cut(const Kernel& kernel, int64_t k, int64_t round, bool whole_depth) {
  const int64_t depth =
      k > 2 * round ? round_up(equal_part(k, round, kernel.group), kernel.depth) : k;
  return {depth, whole_depth ? depth : equal_part(depth, kernel.depth, kernel.group)};
}

// How a product is cut. A task packs its columns of B, which then stay in its caches, and runs over
// its rows of A, a block of which it packs at a time; so neither packed form travels between
// threads. The cut into tasks may depend on the number of threads, because it changes no
// sum: that of an element is in the order of k, cut by `depth` and `step`, whatever is around it.
struct Plan {
  int64_t depth;          // of k per round; between rounds, sums wait
  int64_t step;           // of k per call of the kernel
  int64_t rows, columns;  // per round
  int64_t task_rows, task_columns;
  bool fetches_results;
};

// The cheapest cut of rows x columns for so many threads: the longest share of work, where packing
// adds to each task as much as some more rows and columns would.
void choose_tasks(const Kernel& kernel, bool packs_nothing, int threads, int64_t rows,
                  int64_t columns, Plan& plan) {
  constexpr int64_t kPackingB = 40;                  // rows
  const int64_t packing_a = packs_nothing ? 8 : 48;  // columns
  const int64_t panel = kernel.columns, depth = round_up(plan.depth, kernel.group);
  const int64_t cache = rows <= kBlockRows ? kernel.cache_bytes_of_few_rows : kernel.cache_bytes;
  const int64_t fitting = cache / packed_size(kernel, depth) / panel * panel;
  const int64_t most =
      std::min(std::clamp(fitting, 2 * panel, kernel.task_columns), round_up(columns, panel));
  int64_t best = 0;
  for (int64_t parts = 1; parts == 1 || parts <= 2 * threads; parts *= 2) {
    const int64_t task_rows = equal_part(rows, divide_up(rows, parts), kernel.rows);
    for (int64_t task_columns = most; task_columns > 0; task_columns -= panel) {
      const int64_t tasks = divide_up(rows, task_rows) * divide_up(columns, task_columns);
      const int64_t cost =
          divide_up(tasks, threads) * (task_rows + kPackingB) * (task_columns + packing_a);
      if (best == 0 || cost < best) {
        best = cost;
        plan.task_rows = task_rows;
        plan.task_columns = task_columns;
      }
    }
  }
}

Plan make_plan(const Kernel& kernel, const BlockedProduct& p, int threads) {
  constexpr int64_t kWaitingRows = 1024, kWaitingColumns = 1024;
  constexpr double kWorthSharing = 1 << 18;  // multiply-adds
  // Results that are in a cache already, or done before they could come, are not asked for.
  constexpr int64_t kWorthFetching = 256, kBeyondCache = 1 << 20;  // steps of k, bytes
  Plan plan{};
  const bool in_place = reads_in_place(kernel, p);
  const DepthCut of_k =
      cut(kernel, p.k, in_place ? kernel.round_depth_in_place : kernel.round_depth,
          takes_whole_depth(kernel, p.a));
  const bool waiting = of_k.depth < p.k;
  plan.depth = of_k.depth;
  plan.step = of_k.step;
  plan.fetches_results = p.k >= kWorthFetching && p.m * p.n * p.c.element_bytes >= kBeyondCache;
  plan.rows = waiting ? equal_part(p.m, kWaitingRows, kernel.rows) : p.m;
  plan.columns = waiting ? equal_part(p.n, kWaitingColumns, kernel.columns) : p.n;
  const double work =
      static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  choose_tasks(kernel, in_place || p.a.packed_panel > 0, work < kWorthSharing ? 1 : threads,
               std::min(plan.rows, p.m), std::min(plan.columns, p.n), plan);
  return plan;
}

int64_t panel_bytes(const Kernel& kernel, int64_t depth, int64_t width) {
  return packed_bytes(kernel, depth) * width;
}

const std::byte* element(const Operand& operand, int64_t index, int64_t k) {
  const int64_t at = operand.along_k ? index * operand.stride + k : k * operand.stride + index;
  return static_cast<const std::byte*>(operand.data) + at * operand.element_bytes;
}

// Rows or columns [index, index + count) of an operand and steps [k, k + depth).
struct Part {
  int64_t index, count, k, depth;
};
// Where it goes: panels of so many rows or columns and so many bytes.
struct Panels {
  int64_t width, bytes;
  std::byte* to;
};

// Packs a part of an operand that is to be widened, through copies of some panels and steps.
void pack_widened(const Kernel& kernel, const Operand& operand, const Part& part,
                  const Panels& panels) {
  constexpr int64_t kFloats = 2048, kStep = 64;  // copies stay in the first-level cache
  const int64_t width = panels.width;
  const int64_t most_depth =
      operand.along_k ? kFloats / width / kStep * kStep : std::min(kStep, kernel.chunk);
  const int64_t most_width =
      operand.along_k ? width : std::max<int64_t>(1, kFloats / most_depth / width) * width;
  alignas(64) float copy[kFloats];
  for (int64_t k = 0; k < part.depth; k += most_depth) {
    for (int64_t i = 0; i < part.count; i += most_width) {
      const int64_t depth = std::min(most_depth, part.depth - k);
      const int64_t here = std::min(most_width, part.count - i);
      const int64_t rows = operand.along_k ? here : depth, columns = operand.along_k ? depth : here;
      widen_block(*operand.widened, element(operand, part.index + i, part.k + k), operand.stride,
                  copy, columns, rows, columns);
      for (int64_t panel = 0; panel < here; panel += width) {
        operand.pack({.from = copy + panel * (operand.along_k ? columns : 1),
                      .stride = columns,
                      .width = std::min(width, here - panel),
                      .depth = depth,
                      .to = panels.to + (i + panel) / width * panels.bytes +
                            packed_size(kernel, k) * width});
      }
    }
  }
}

// Packs a part. Sources that run across panels are read some rows at a time, so that each of their
// lines is fetched once.
void pack_panels(const Kernel& kernel, const Operand& operand, const Part& part,
                 const Panels& panels) {
  if (operand.widened) return pack_widened(kernel, operand, part, panels);
  const int64_t chunk = operand.along_k ? part.depth : kernel.chunk, width = panels.width;
  for (int64_t at = 0; at < part.depth; at += chunk) {
    for (int64_t i = 0; i < part.count; i += width) {
      operand.pack({.from = element(operand, part.index + i, part.k + at),
                    .stride = operand.stride,
                    .width = std::min(width, part.count - i),
                    .depth = std::min(chunk, part.depth - at),
                    .to = panels.to + i / width * panels.bytes + packed_size(kernel, at) * width,
                    .index = part.index + i,
                    .k = part.k + at});
    }
  }
}

// Where a part of the results will be.
ResultLines result_lines(const Destination& to, const FinishedSums& part) {
  if (to.data == nullptr) return {};
  const auto* const first =
      static_cast<const char*>(to.data) + (part.row * to.stride + part.column) * to.element_bytes;
  const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(first) % kLine);
  return {first - begin, to.stride * to.element_bytes,
          divide_up(begin + part.columns * to.element_bytes, kLine)};
}

// Asks for them: they come while they are multiplied.
__attribute__((always_inline)) inline void fetch(const ResultLines& lines, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) fetch_lines(lines.first + i * lines.row, lines.count, kLine);
}

// Rows of A that are packed already: where their first panel begins, and bytes from one to the
// next.
struct PackedRows {
  const std::byte* data = nullptr;
  int64_t panel = 0;
};

// One round: rows x columns of C from `depth` of k.
struct Round {
  const Kernel& kernel;
  const BlockedProduct& product;
  const Plan& plan;
  int64_t row, rows, column, columns, k, depth;
  float* waiting;     // sums between rounds, panel by panel; null when there is one round of k
  PackedRows packed;  // of the round, if they are
};

// Rows [row, +rows) and steps [k, +depth) of A as a kernel reads them.
struct RowsOfA {
  const std::byte* data;
  int64_t panel, row, group;  // bytes from one to the next
};

// Where they lie, if they are packed or the kernel can read them there, else packed to `packed`, in
// panels of so many bytes.
RowsOfA rows_of_a(const Round& r, const Part& part, bool in_place, std::byte* packed,
                  int64_t panel) {
  const Kernel& kernel = r.kernel;
  const Operand& a = r.product.a;
  const int64_t group = kernel.rows * kernel.unpacked_rows;
  if (r.packed.data != nullptr) {
    return {r.packed.data + (part.index - r.row) / kernel.rows * r.packed.panel +
                packed_size(kernel, part.k - r.k) * kernel.rows,
            r.packed.panel, kernel.unpacked_rows, group};
  }
  if (in_place && part.count % kernel.rows == 0) {
    const int64_t stride = a.stride * a.element_bytes;
    return {element(a, part.index, part.k), kernel.rows * stride, stride, kernel.unpacked_rows};
  }
  pack_panels(kernel, a, part, {.width = kernel.rows, .bytes = panel, .to = packed});
  return {packed, panel, kernel.unpacked_rows, group};
}

// What is fetched beside the products of one panel of B: of each group of k so many rows, which lie
// `row` bytes apart.
struct NextRows {
  const std::byte* data = nullptr;
  int64_t count = 0, row = 0;
};

// Its share of the rows from `row` of the round on, where `left` are left to do.
NextRows next_rows(const Round& r, const RowsOfA& a, int64_t row, int64_t left, int64_t panel,
                   int64_t panels) {
  // Panels of B: beside fewer, too many rows of A would come at a time.
  constexpr int64_t kWorthFetchingFor = 3;
  const Kernel& kernel = r.kernel;
  if (panels < kWorthFetchingFor || left <= 0 || !takes_whole_depth(kernel, r.product.a)) return {};
  const auto share = [&](int64_t rows) {
    return std::pair(rows * panel / panels, rows * (panel + 1) / panels - rows * panel / panels);
  };
  if (r.packed.data != nullptr) {
    // A group of a panel is some lines in a row.
    const auto [first, count] = share(packed_size(kernel, kernel.group) * kernel.rows / kLine);
    return {r.packed.data + row / kernel.rows * r.packed.panel + first * kLine, count, kLine};
  }
  if (!reads_in_place(kernel, r.product)) return {};
  const auto [first, count] = share(std::min(left, kernel.rows));
  return {element(r.product.a, r.row + row + first, r.k), count, a.row};
}

// The last products of `call`, whose rows begin at `row` and columns at `column` of the round. Each
// block is finished when it is done: its stores wait for memory while the next is multiplied. The
// call is changed from block to block, since a copy of it would wait for those stores.
void multiply_and_finish(const Round& r, int64_t row, int64_t column, int64_t columns,
                         MultiplyCall& call,
                         const std::function<void(const FinishedSums&)>& finish) {
  const int64_t panel_rows = r.kernel.rows, end = call.rows;
  for (int64_t at = 0; at < end; at += panel_rows) {
    call.rows = std::min(panel_rows, end - at);
    const FinishedSums part{.sums = call.c,
                            .stride = r.kernel.columns,
                            .row = r.row + row + at,
                            .rows = call.rows,
                            .column = r.column + column,
                            .columns = columns};
    if (r.plan.fetches_results) {
      call.results = result_lines(r.product.c, part);
      if (!r.kernel.fetches_results) fetch(call.results, part.rows);
      fetch(result_lines(r.product.pre, part), part.rows);
    }
    r.kernel.multiply(call);
    finish(part);
    call.a = static_cast<const std::byte*>(call.a) + call.a_panel;
    call.c += panel_rows * r.kernel.columns;
  }
}

void run_task(const Round& r, int64_t row, int64_t rows, int64_t column, int64_t columns,
              const std::function<void(const FinishedSums&)>& finish) {
  static thread_local Scratch scratch;
  const Kernel& kernel = r.kernel;
  const bool in_place = reads_in_place(kernel, r.product);
  const int64_t block_rows = takes_whole_depth(kernel, r.product.a)
                                 ? kernel.rows
                                 : std::max<int64_t>(1, kBlockRows / kernel.rows) * kernel.rows;
  const int64_t a_panel = panel_bytes(kernel, std::min(r.plan.step, r.depth), kernel.rows);
  const int64_t b_panel = panel_bytes(kernel, r.depth, kernel.columns);
  const int64_t panels = divide_up(columns, kernel.columns);
  // One piece of memory, so that one large page holds what the task uses all the time. Sums that
  // are finished by the call that begins them need room for one panel.
  const bool waits = r.waiting != nullptr, at_once = !waits && r.depth <= r.plan.step;
  const int64_t a_bytes = round_up(block_rows / kernel.rows * a_panel, kLine);
  const int64_t sums_rows = waits ? round_up(r.rows, kernel.rows) : block_rows;
  const int64_t sums_bytes = waits ? 0
                                   : (at_once ? 1 : panels) * block_rows * kernel.columns *
                                         static_cast<int64_t>(sizeof(float));
  auto* const packed_a = scratch.get<std::byte>(a_bytes + sums_bytes + panels * b_panel);
  auto* const packed_b = packed_a + a_bytes + sums_bytes;
  pack_panels(kernel, r.product.b,
              {.index = r.column + column, .count = columns, .k = r.k, .depth = r.depth},
              {.width = kernel.columns, .bytes = b_panel, .to = packed_b});

  // Sums of a block, panel by panel; those that wait for the next round lie where all tasks' do.
  float* const sums =
      waits ? r.waiting + column * sums_rows : reinterpret_cast<float*>(packed_a + a_bytes);
  const int64_t panel_sums = at_once ? 0 : sums_rows * kernel.columns;
  const bool last_round = r.k + r.depth == r.product.k;
  std::optional<AmxTiles> tiles;
  if (kernel.tile_bytes > 0) tiles.emplace(kernel.tile_bytes);
  for (int64_t at = row; at < row + rows; at += block_rows) {
    const int64_t here = std::min(block_rows, row + rows - at);
    for (int64_t k = 0; k < r.depth; k += r.plan.step) {
      const int64_t depth = std::min(r.plan.step, r.depth - k);
      const RowsOfA a =
          rows_of_a(r, {.index = r.row + at, .count = here, .k = r.k + k, .depth = depth}, in_place,
                    packed_a, a_panel);
      for (int64_t panel = 0; panel < panels; ++panel) {
        const NextRows next = next_rows(r, a, at + here, row + rows - at - here, panel, panels);
        MultiplyCall call{.a = a.data,
                          .a_panel = a.panel,
                          .a_row = a.row,
                          .a_group = a.group,
                          .b = packed_b + panel * b_panel + packed_size(kernel, k) * kernel.columns,
                          .c = sums + panel * panel_sums + (waits ? at * kernel.columns : 0),
                          .rows = here,
                          .depth = round_up(depth, kernel.group),
                          .first = r.k == 0 && k == 0,
                          .next = next.data,
                          .next_rows = next.count,
                          .next_row = next.row,
                          .results = {}};
        if (last_round && k + depth == r.depth) {
          const int64_t first = panel * kernel.columns;
          multiply_and_finish(r, at, column + first, std::min(kernel.columns, columns - first),
                              call, finish);
        } else {
          kernel.multiply(call);
        }
      }
    }
  }
}

// Packs all rows of a round where that pays and does not take much memory, which the thread keeps;
// or they are so by their owner.
PackedRows packed_already(const Round& r, int64_t column_tasks, Scratch& memory, ThreadPool& pool) {
  const Kernel& kernel = r.kernel;
  const Operand& a = r.product.a;
  if (a.packed_panel > 0) {
    return {static_cast<const std::byte*>(a.data) + r.row / kernel.rows * a.packed_panel +
                packed_size(kernel, r.k) * kernel.rows,
            a.packed_panel};
  }
  if (kernel.packs_a_once_from == 0 || column_tasks < kernel.packs_a_once_from || !a.along_k) {
    return {};
  }
  constexpr int64_t kMostBytes = 16 << 20;
  const int64_t panels = divide_up(r.rows, kernel.rows);
  const int64_t panel = panel_bytes(kernel, r.depth, kernel.rows);
  if (panels * panel > kMostBytes) return {};
  auto* const to = memory.get<std::byte>(panels * panel);
  pool.run(panels, [&](int64_t i) {
    const int64_t row = i * kernel.rows;
    pack_panels(kernel, a,
                {.index = r.row + row,
                 .count = std::min(kernel.rows, r.rows - row),
                 .k = r.k,
                 .depth = r.depth},
                {.width = kernel.rows, .bytes = panel, .to = to + i * panel});
  });
  return {to, panel};
}

}  // namespace

int64_t packed_bytes(const Kernel& kernel, int64_t k) {
  return packed_size(kernel, round_up(k, kernel.group));
}

DepthCut cut_depth(const Kernel& kernel, int64_t k) {
  return cut(kernel, k, kernel.round_depth, false);
}

void multiply_blocked(const Kernel& kernel, const BlockedProduct& product, ThreadPool& pool,
                      const std::function<void(const FinishedSums&)>& finish) {
  static thread_local Scratch waiting_sums, packed_rows;
  const Plan plan = make_plan(kernel, product, pool.threads());
  float* waiting = nullptr;
  if (plan.depth < product.k) {
    waiting = waiting_sums.get<float>(round_up(plan.columns, kernel.columns) *
                                      round_up(plan.rows, kernel.rows));
  }
  for (int64_t column = 0; column < product.n; column += plan.columns) {
    for (int64_t row = 0; row < product.m; row += plan.rows) {
      for (int64_t k = 0; k < product.k; k += plan.depth) {
        Round round{.kernel = kernel,
                    .product = product,
                    .plan = plan,
                    .row = row,
                    .rows = std::min(plan.rows, product.m - row),
                    .column = column,
                    .columns = std::min(plan.columns, product.n - column),
                    .k = k,
                    .depth = std::min(plan.depth, product.k - k),
                    .waiting = waiting,
                    .packed = {}};
        const int64_t row_tasks = divide_up(round.rows, plan.task_rows);
        const int64_t column_tasks = divide_up(round.columns, plan.task_columns);
        round.packed = packed_already(round, column_tasks, packed_rows, pool);
        pool.run(row_tasks * column_tasks, [&](int64_t task) {
          const int64_t task_row = task % row_tasks * plan.task_rows;
          const int64_t task_column = task / row_tasks * plan.task_columns;
          run_task(round, task_row, std::min(plan.task_rows, round.rows - task_row), task_column,
                   std::min(plan.task_columns, round.columns - task_column), finish);
        });
      }
    }
  }
}

}  // namespace ds::kernels::gemm
