#include "kernels/matmul/blocked.h"

#include <algorithm>
#include <optional>

#include "kernels/cpu.h"
#include "kernels/matmul/convert.h"
#include "kernels/matmul/scratch.h"

namespace ds::kernels::gemm {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t multiple) { return divide_up(a, multiple) * multiple; }

// `total` in the fewest equal parts of at most `limit`, rounded up to a multiple.
int64_t equal_part(int64_t total, int64_t limit, int64_t multiple) {
  return std::min(round_up(divide_up(total, divide_up(total, limit)), multiple),
                  round_up(total, multiple));
}

// How a product is cut. A is packed by all threads together, `rows` x `depth` at a time; then each
// task packs a few columns of B for itself, where they stay in its second-level cache, and runs
// over all those rows. Packing costs a part of 1 / n of the work for A, of 1 / rows for B.
struct Plan {
  int64_t depth;         // of k per round
  int64_t step;          // of k per call of the kernel
  int64_t rows;          // per round
  int64_t columns;       // per round
  int64_t task_columns;  // a task: so many columns
  int64_t task_rows;     // by so many rows
};

// A task's columns: a multiple of a panel that gives every one of eight threads the same number of
// tasks where possible, and few readings of A.
int64_t choose_task_columns(int64_t n, int64_t panel) {
  constexpr int64_t kThreads = 8, kLeast = 96, kMost = 256;
  if (n <= kLeast) return round_up(n, panel);
  int64_t best = panel;
  double best_cost = 0;
  for (int64_t columns = kMost / panel * panel; columns >= kLeast; columns -= panel) {
    const int64_t rounds = divide_up(divide_up(n, columns), kThreads);
    const double reading = 0.02 * kMost / static_cast<double>(columns);
    const double cost =
        static_cast<double>(rounds * kThreads * columns) / static_cast<double>(n) + reading;
    if (best_cost == 0 || cost < best_cost) {
      best = columns;
      best_cost = cost;
    }
  }
  return best;
}

Plan make_plan(const Kernel& kernel, const BlockedProduct& p) {
  constexpr int64_t kDepthBytes = 4096;      // of a row of A per round
  constexpr int64_t kPackedBytes = 4 << 20;  // of A per round
  constexpr int64_t kWaitingColumns = 1024;  // where sums wait for the next round
  constexpr int64_t kWaitingRows = 1024;
  constexpr int64_t kMostRows = 4096;
  constexpr int64_t kTaskRows = 128;
  constexpr double kWorthSharing = 1 << 18;  // multiply-adds
  Plan plan;
  plan.depth = equal_part(p.k, kDepthBytes / kernel.element_bytes, kernel.group);
  if (plan.depth < p.k) plan.depth = round_up(plan.depth, kernel.depth);
  plan.step = equal_part(plan.depth, kernel.depth, kernel.group);
  const bool waiting = plan.depth < p.k;
  const int64_t fitting = kPackedBytes / (plan.depth * kernel.element_bytes);
  const int64_t row_limit =
      std::clamp<int64_t>(fitting, kernel.rows, waiting ? kWaitingRows : kMostRows);
  plan.rows = equal_part(p.m, row_limit, kernel.rows);
  plan.columns = waiting ? equal_part(p.n, kWaitingColumns, kernel.columns) : p.n;
  plan.task_columns = choose_task_columns(std::min(plan.columns, p.n), kernel.columns);
  plan.task_rows = plan.rows;
  const double work =
      static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  if (work < kWorthSharing) {
    plan.task_columns = round_up(std::min(plan.columns, p.n), kernel.columns);
    return plan;
  }
  // Few columns: share out rows as well.
  const int64_t column_tasks = divide_up(std::min(plan.columns, p.n), plan.task_columns);
  if (column_tasks < 4) {
    const int64_t parts = std::clamp<int64_t>(plan.rows / kTaskRows, 1, divide_up(8, column_tasks));
    plan.task_rows = equal_part(plan.rows, divide_up(plan.rows, parts), kernel.rows);
  }
  return plan;
}

int64_t panel_bytes(const Kernel& kernel, int64_t depth, int64_t width) {
  return round_up(depth, kernel.group) * width * kernel.element_bytes;
}

const std::byte* element(const Operand& operand, int64_t index, int64_t k) {
  const int64_t at = operand.along_k ? index * operand.stride + k : k * operand.stride + index;
  return static_cast<const std::byte*>(operand.data) + at * operand.element_bytes;
}

void pack_panel(const Operand& operand, const PackCall& call, int64_t bytes_per_step) {
  if (!operand.widened) return operand.pack(call);
  constexpr int64_t kWidth = 32, kDepth = 64;
  alignas(64) float copy[kWidth * kDepth];
  for (int64_t k = 0; k < call.depth; k += kDepth) {
    const int64_t depth = std::min(kDepth, call.depth - k);
    const int64_t rows = operand.along_k ? call.width : depth;
    const int64_t columns = operand.along_k ? depth : call.width;
    const int64_t at = operand.along_k ? k : k * operand.stride;
    widen_block(*operand.widened,
                static_cast<const std::byte*>(call.from) + at * operand.element_bytes,
                operand.stride, copy, columns, rows, columns);
    operand.pack({.from = copy,
                  .stride = columns,
                  .width = call.width,
                  .depth = depth,
                  .to = static_cast<std::byte*>(call.to) + k * bytes_per_step});
  }
}

// Packs `count` rows or columns from `index` on, in panels of `width`. Sources that run across
// panels are read some rows at a time, so that each of their lines is fetched once.
void pack_panels(const Kernel& kernel, const Operand& operand, int64_t width, int64_t index,
                 int64_t count, int64_t k, int64_t depth, std::byte* to) {
  constexpr int64_t kChunk = 128;  // a multiple of every group
  const int64_t panel = panel_bytes(kernel, depth, width);
  const int64_t chunk = operand.along_k ? depth : kChunk;
  for (int64_t at = 0; at < depth; at += chunk) {
    for (int64_t i = 0; i < count; i += width) {
      pack_panel(operand,
                 {.from = element(operand, index + i, k + at),
                  .stride = operand.stride,
                  .width = std::min(width, count - i),
                  .depth = std::min(chunk, depth - at),
                  .to = to + i / width * panel + at * width * kernel.element_bytes},
                 width * kernel.element_bytes);
    }
  }
}

// One round: rows x columns of C from `depth` of k.
struct Round {
  const Kernel& kernel;
  const BlockedProduct& product;
  const Plan& plan;
  int64_t row, rows, column, columns, k, depth;
  std::byte* packed_a;
  float* waiting;  // sums between rounds, panel by panel; null when there is one round of k
};

void pack_round_a(const Round& r, ThreadPool& pool) {
  const int64_t width = r.kernel.rows;
  const int64_t chunk = std::max<int64_t>(1, 128 / width) * width;
  pool.run(divide_up(r.rows, chunk), [&](int64_t task) {
    const int64_t at = task * chunk;
    pack_panels(r.kernel, r.product.a, width, r.row + at, std::min(chunk, r.rows - at), r.k,
                r.depth, r.packed_a + at / width * panel_bytes(r.kernel, r.depth, width));
  });
}

struct TaskScratch {
  Scratch b, sums;
};

void run_task(const Round& r, int64_t row, int64_t rows, int64_t column, int64_t columns,
              const std::function<void(const FinishedSums&)>& finish) {
  static thread_local TaskScratch scratch;
  constexpr int64_t kBlockRows = 256;  // that stay in the second-level cache between panels of B
  const Kernel& kernel = r.kernel;
  const int64_t a_panel = panel_bytes(kernel, r.depth, kernel.rows);
  const int64_t b_panel = panel_bytes(kernel, r.depth, kernel.columns);
  const int64_t panels = divide_up(columns, kernel.columns);
  auto* packed_b = scratch.b.get<std::byte>(panels * b_panel);
  pack_panels(kernel, r.product.b, kernel.columns, r.column + column, columns, r.k, r.depth,
              packed_b);

  const int64_t block_rows = std::max<int64_t>(1, kBlockRows / kernel.rows) * kernel.rows;
  const int64_t sums_rows = r.waiting != nullptr ? round_up(r.rows, kernel.rows) : block_rows;
  float* const sums = r.waiting != nullptr
                          ? r.waiting + column * sums_rows
                          : scratch.sums.get<float>(panels * block_rows * kernel.columns);
  const bool last_round = r.k + r.depth == r.product.k;
  std::optional<AmxTiles> tiles;
  if (kernel.tiles) tiles.emplace();
  for (int64_t at = row; at < row + rows; at += block_rows) {
    const int64_t here = std::min(block_rows, row + rows - at);
    for (int64_t k = 0; k < r.depth; k += r.plan.step) {
      const bool last = last_round && k + r.plan.step >= r.depth;
      for (int64_t panel = 0; panel < panels; ++panel) {
        float* const c = sums + panel * sums_rows * kernel.columns +
                         (r.waiting != nullptr ? at * kernel.columns : 0);
        kernel.multiply(
            {.a = r.packed_a + at / kernel.rows * a_panel + k * kernel.rows * kernel.element_bytes,
             .a_panel = a_panel,
             .b = packed_b + panel * b_panel + k * kernel.columns * kernel.element_bytes,
             .c = c,
             .blocks = divide_up(here, kernel.rows),
             .depth = round_up(std::min(r.plan.step, r.depth - k), kernel.group),
             .first = r.k == 0 && k == 0});
        if (!last) continue;
        const int64_t first_column = column + panel * kernel.columns;
        finish({.sums = c,
                .stride = kernel.columns,
                .row = r.row + at,
                .rows = here,
                .column = r.column + first_column,
                .columns = std::min(kernel.columns, column + columns - first_column)});
      }
    }
  }
}

struct RoundScratch {
  Scratch a, sums;
};

}  // namespace

void multiply_blocked(const Kernel& kernel, const BlockedProduct& product, ThreadPool& pool,
                      const std::function<void(const FinishedSums&)>& finish) {
  static thread_local RoundScratch scratch;
  const Plan plan = make_plan(kernel, product);
  auto* const packed_a =
      scratch.a.get<std::byte>(divide_up(plan.rows, kernel.rows) *
                               panel_bytes(kernel, std::min(plan.depth, product.k), kernel.rows));
  float* waiting = nullptr;
  if (plan.depth < product.k) {
    waiting = scratch.sums.get<float>(round_up(plan.columns, kernel.columns) *
                                      round_up(plan.rows, kernel.rows));
  }
  for (int64_t column = 0; column < product.n; column += plan.columns) {
    for (int64_t row = 0; row < product.m; row += plan.rows) {
      for (int64_t k = 0; k < product.k; k += plan.depth) {
        const Round round{.kernel = kernel,
                          .product = product,
                          .plan = plan,
                          .row = row,
                          .rows = std::min(plan.rows, product.m - row),
                          .column = column,
                          .columns = std::min(plan.columns, product.n - column),
                          .k = k,
                          .depth = std::min(plan.depth, product.k - k),
                          .packed_a = packed_a,
                          .waiting = waiting};
        pack_round_a(round, pool);
        const int64_t row_tasks = divide_up(round.rows, plan.task_rows);
        const int64_t tasks = row_tasks * divide_up(round.columns, plan.task_columns);
        pool.run(tasks, [&](int64_t task) {
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
