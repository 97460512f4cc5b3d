#include "bench/gpu_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "base/text.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/dropout.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/optimizer_update.h"
#include "ops/reduce.h"
#include "ops/rotary.h"
#include "tensor/transfer.h"

namespace ds::bench {
namespace {

using testing::OpCase;
using Body = std::function<void()>;

constexpr DType kF = DType::kFloat32, kB = DType::kBFloat16;

const char* type_text(DType dtype) { return dtype == kF ? "fp32" : "bf16"; }

Tensor zeros(const OpContext& ctx, DType dtype, const Shape& shape) {
  return Tensor::zeros(ctx.device, dtype, shape, MemoryTag::kOther);
}

// Whole numbers in [0, below).
Tensor some_ids(const OpContext& ctx, const Shape& shape, int64_t below) {
  std::mt19937 random(7);
  std::vector<int32_t> ids(static_cast<size_t>(shape.elements()));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(below));
  Tensor out = Tensor::empty(ctx.device, DType::kInt32, shape, MemoryTag::kOther);
  copy_from_host(ids.data(), out);
  return out;
}

// Rows of a matrix, whose traffic is `passes` times its bytes.
struct Matrix {
  DType dtype;
  int64_t rows, columns;
  Shape shape() const { return {rows, columns}; }
  std::string text() const { return str_cat(type_text(dtype), "/", rows, "x", columns); }
  double bytes(double passes) const {
    return passes * static_cast<double>(rows * columns * dtype_size(dtype));
  }
};

OpCase row(std::string name, double flops, double bytes,
           std::function<Body(const OpContext&)> prepare) {
  OpCase made;
  made.name = std::move(name);
  made.flops = flops;
  made.bytes = bytes;
  made.prepare = std::move(prepare);
  return made;
}

void add_elementwise(std::vector<OpCase>& rows, int64_t tokens) {
  const Matrix m{kB, tokens, 4096};
  rows.push_back(row("add/" + m.text(), 0, m.bytes(3), [m](const OpContext& ctx) -> Body {
    const Tensor a = varied_tensor(ctx, m.dtype, m.shape()),
                 b = varied_tensor(ctx, m.dtype, m.shape());
    return [ctx, a, b, y = zeros(ctx, m.dtype, m.shape())]() mutable { ops::add(ctx, a, b, y); };
  }));
  const Matrix wide{kF, tokens, 4096};
  rows.push_back(
      row("cast/" + wide.text(), 0, wide.bytes(1.5), [wide](const OpContext& ctx) -> Body {
        const Tensor x = varied_tensor(ctx, kF, wide.shape());
        return [ctx, x, y = zeros(ctx, kB, wide.shape())]() mutable { ops::cast(ctx, x, y); };
      }));
  rows.push_back(row("dropout/" + m.text(), 0, m.bytes(2), [m](const OpContext& ctx) -> Body {
    const Tensor x = varied_tensor(ctx, m.dtype, m.shape());
    return [ctx, x, y = zeros(ctx, m.dtype, m.shape())]() mutable {
      ops::dropout(ctx, x, {}, 0.1, {1, 2, 3}, y);
    };
  }));
  rows.push_back(
      row("sum_squares/" + wide.text(), 0, wide.bytes(1), [wide](const OpContext& ctx) -> Body {
        const Tensor x = varied_tensor(ctx, kF, wide.shape());
        Tensor out = zeros(ctx, DType::kInt64, {ExactSum::kWords});
        return [ctx, x, out]() mutable { ops::exact_squares(ctx, x, out); };
      }));
}

void add_activations(std::vector<OpCase>& rows, int64_t tokens) {
  const Matrix m{kB, tokens, 6400};
  rows.push_back(
      row("gelu/" + m.text() + "/forward", 0, m.bytes(2), [m](const OpContext& ctx) -> Body {
        const Tensor x = varied_tensor(ctx, kB, m.shape()), b = varied_tensor(ctx, kB, {m.columns});
        return [ctx, x, b, y = zeros(ctx, kB, m.shape())]() mutable {
          ops::bias_gelu(ctx, x, b, ops::Gelu::kTanh, y);
        };
      }));
  rows.push_back(
      row("gelu/" + m.text() + "/backward", 0, m.bytes(3), [m](const OpContext& ctx) -> Body {
        const Tensor x = varied_tensor(ctx, kB, m.shape()), b = varied_tensor(ctx, kB, {m.columns});
        const Tensor dy = varied_tensor(ctx, kB, m.shape());
        return [ctx, x, b, dy, dx = zeros(ctx, kB, m.shape()),
                db = zeros(ctx, kF, {m.columns})]() mutable {
          ops::bias_gelu_backward(ctx, dy, x, b, ops::Gelu::kTanh, dx, db);
        };
      }));
  const Matrix g{kB, tokens / 2, 14336};
  rows.push_back(
      row("swiglu/" + g.text() + "/forward", 0, g.bytes(3), [g](const OpContext& ctx) -> Body {
        const Tensor gate = varied_tensor(ctx, kB, g.shape()),
                     up = varied_tensor(ctx, kB, g.shape());
        return [ctx, gate, up, y = zeros(ctx, kB, g.shape())]() mutable {
          ops::gated_activation(ctx, gate, up, ops::Activation::kSilu, y);
        };
      }));
  rows.push_back(
      row("swiglu/" + g.text() + "/backward", 0, g.bytes(5), [g](const OpContext& ctx) -> Body {
        const Tensor gate = varied_tensor(ctx, kB, g.shape()),
                     up = varied_tensor(ctx, kB, g.shape());
        const Tensor dy = varied_tensor(ctx, kB, g.shape());
        return [ctx, gate, up, dy, a = zeros(ctx, kB, g.shape()),
                b = zeros(ctx, kB, g.shape())]() mutable {
          ops::gated_activation_backward(ctx, dy, gate, up, ops::Activation::kSilu, a, b);
        };
      }));
}

// With the residual: two summands are read, the sum and the normalised rows are written; backward
// reads two gradients and the sum.
void add_norms(std::vector<OpCase>& rows, const Matrix& m, bool rms) {
  const std::string name = str_cat(rms ? "rms_norm/" : "layer_norm/", m.text());
  struct Arrays {
    Tensor x, residual, gamma, y, sum, mean, rstd, dx, dgamma, dbeta;
  };
  const auto arrays = [m](const OpContext& ctx) {
    const Tensor gamma = varied_tensor(ctx, m.dtype, {m.columns});
    return Arrays{varied_tensor(ctx, m.dtype, m.shape()),
                  varied_tensor(ctx, m.dtype, m.shape()),
                  gamma,
                  zeros(ctx, m.dtype, m.shape()),
                  zeros(ctx, m.dtype, m.shape()),
                  zeros(ctx, kF, {m.rows}),
                  zeros(ctx, kF, {m.rows}),
                  zeros(ctx, m.dtype, m.shape()),
                  zeros(ctx, kF, {m.columns}),
                  zeros(ctx, kF, {m.columns})};
  };
  const auto forward = [rms](const OpContext& ctx, const Arrays& a) {
    if (rms) {
      ops::rms_norm(ctx, {.x = a.x, .residual = a.residual, .gamma = a.gamma, .eps = 1e-5f},
                    {.y = a.y, .sum = a.sum, .rstd = a.rstd});
    } else {
      ops::layer_norm(
          ctx, {.x = a.x, .residual = a.residual, .gamma = a.gamma, .beta = a.gamma, .eps = 1e-5f},
          {.y = a.y, .sum = a.sum, .mean = a.mean, .rstd = a.rstd});
    }
  };
  rows.push_back(row(name + "/forward", 0, m.bytes(4), [=](const OpContext& ctx) -> Body {
    return [=, a = arrays(ctx)]() mutable { forward(ctx, a); };
  }));
  rows.push_back(row(name + "/backward", 0, m.bytes(4), [=](const OpContext& ctx) -> Body {
    Arrays a = arrays(ctx);
    forward(ctx, a);
    return [=]() mutable {
      if (rms) {
        ops::rms_norm_backward(
            ctx, {.dy = a.y, .dsum = a.x, .sum = a.sum, .gamma = a.gamma, .rstd = a.rstd},
            {.dx = a.dx, .dgamma = a.dgamma});
      } else {
        ops::layer_norm_backward(ctx,
                                 {.dy = a.y,
                                  .dsum = a.x,
                                  .sum = a.sum,
                                  .gamma = a.gamma,
                                  .mean = a.mean,
                                  .rstd = a.rstd},
                                 {.dx = a.dx, .dgamma = a.dgamma, .dbeta = a.dbeta});
      }
    };
  }));
}

void add_ends(std::vector<OpCase>& rows, int64_t tokens, int64_t vocab) {
  const Matrix logits{kB, tokens / 2, vocab};
  rows.push_back(row("cross_entropy/" + logits.text(), 0, logits.bytes(2),
                     [logits](const OpContext& ctx) -> Body {
                       const Tensor labels = some_ids(ctx, {logits.rows}, logits.columns);
                       return [ctx, labels, x = varied_tensor(ctx, kB, logits.shape()),
                               n = logits.columns, loss = zeros(ctx, kF, {logits.rows})]() mutable {
                         ops::cross_entropy_fused(ctx, x, labels, n, 1.0f, loss);
                       };
                     }));
  const Matrix m{kB, tokens * 4, 1600};
  rows.push_back(row("embedding/" + m.text() + "/forward", 0, m.bytes(2),
                     [m, vocab](const OpContext& ctx) -> Body {
                       const Tensor ids = some_ids(ctx, {m.rows}, vocab);
                       const Tensor table = varied_tensor(ctx, kB, {vocab, m.columns});
                       return [ctx, ids, table, y = zeros(ctx, kB, m.shape())]() mutable {
                         ops::embedding(ctx, ids, table, {}, {}, y);
                       };
                     }));
  // fp32 rows of the table's gradient are read and written: at most one for each token.
  const double touched = 8 * static_cast<double>(std::min(m.rows, vocab) * m.columns);
  rows.push_back(row("embedding/" + m.text() + "/backward", 0, m.bytes(1) + touched,
                     [m, vocab](const OpContext& ctx) -> Body {
                       const Tensor ids = some_ids(ctx, {m.rows}, vocab);
                       const Tensor dy = varied_tensor(ctx, kB, m.shape());
                       return [ctx, ids, dy, table = zeros(ctx, kF, {vocab, m.columns})]() mutable {
                         ops::embedding_backward(ctx, ids, dy, table);
                       };
                     }));
  const int64_t length = std::min<int64_t>(tokens, 4096), batch = tokens / length;
  const Matrix turned{kB, tokens, 4096};
  rows.push_back(row("rotary/" + turned.text(), 0, turned.bytes(2),
                     [batch, length](const OpContext& ctx) -> Body {
                       Tensor x = varied_tensor(ctx, kB, {batch, length, 32, 128});
                       const Tensor angles = varied_tensor(ctx, kF, {length, 64});
                       const Tensor places = some_ids(ctx, {batch, length}, length);
                       return [=]() mutable { ops::rotary(ctx, x, places, angles, angles, {}, x); };
                     }));
}

// How the arrays of an optimizer's update are stored.
struct States {
  const char* text;
  DType grad;
  bool split;  // masters are bf16 weights and 16 further bits, else fp32
  bool model;  // a bf16 copy is written beside fp32 masters
  DType state;
};

struct Update {
  Update(const OpContext& ctx, const States& s, int states, int64_t n) {
    for (int64_t at = 0; at < n; at += kernels::kUpdateChunk) {
      first.push_back(static_cast<int64_t>(pieces.size()));
      pieces.push_back({at, std::min(n, at + kernels::kUpdateChunk), 0});
    }
    first.push_back(static_cast<int64_t>(pieces.size()));
    if (ctx.device->kind() != DeviceKind::kCpu) {
      tables = ops::make_update_tables(ctx.device, pieces, first);
    }
    tensors.grad = varied_tensor(ctx, s.grad, {n});
    if (s.split) {
      tensors.weight = varied_tensor(ctx, kB, {n});
      tensors.low = zeros(ctx, DType::kUInt16, {n});
    } else {
      tensors.master = varied_tensor(ctx, kF, {n});
      if (s.model) tensors.model = zeros(ctx, kB, {n});
    }
    for (int i = 0; i < states; ++i) {
      const bool codes = dtype_size(s.state) == 1;
      tensors.states[i].data = zeros(ctx, codes && i == 1 ? DType::kUInt8 : s.state, {n});
      if (codes) tensors.states[i].scales = zeros(ctx, kF, {n / kernels::kStateBlock});
    }
  }
  void run(const OpContext& ctx, kernels::UpdateRule rule, const kernels::UpdateHyper& hyper) {
    constants.assign(1, kernels::update_constants(rule, hyper));
    ops::UpdateWork work{constants, pieces, first};
    if (tables.pieces) work.tables = &tables;
    ops::optimizer_update(ctx, rule, work, tensors);
  }

  std::vector<kernels::UpdateConstants> constants;
  std::vector<kernels::UpdatePiece> pieces;
  std::vector<int64_t> first;
  ops::UpdateTables tables;
  ops::UpdateTensors tensors;
};

void add_updates(std::vector<OpCase>& rows, int64_t n) {
  const auto add = [&](const char* name, kernels::UpdateRule rule, const States& s) {
    const int states = kernels::update_states(rule);
    const auto size = [](DType dtype) { return static_cast<double>(dtype_size(dtype)); };
    const double each = size(s.grad) + 8 + (s.model ? 2 : 0) + 2 * states * size(s.state);
    rows.push_back(row(str_cat(name, "/", s.text, "/", n), 0, each * static_cast<double>(n),
                       [=](const OpContext& ctx) -> Body {
                         const auto update = std::make_shared<Update>(ctx, s, states, n);
                         kernels::UpdateHyper hyper;
                         hyper.weight_decay = 0.1;
                         return [=]() mutable {
                           update->run(ctx, rule, hyper);
                           ++hyper.step;
                         };
                       }));
  };
  const States fp32{"fp32", kF, false, false, kF}, copy{"bf16_copy", kB, false, true, kF};
  const States split{"bf16_split", kB, true, false, kF};
  const States codes{"bf16_split_int8", kB, true, false, DType::kInt8};
  for (const States& s : {fp32, copy, split, codes}) add("adamw", kernels::UpdateRule::kAdam, s);
  add("lion", kernels::UpdateRule::kLion, fp32);
}

struct Heads {
  int64_t batch, heads, kv_heads, length, size;
};

// Products of visible pairs: two of 2 * head size FLOP in forward, five in backward.
void add_attention(std::vector<OpCase>& rows, const Heads& h) {
  const std::string name = str_cat("attention/bf16/", h.batch, "x", h.heads, "x", h.kv_heads, "x",
                                   h.length, "x", h.size);
  const double pairs =
      static_cast<double>(h.batch * h.heads * h.length) * (static_cast<double>(h.length) + 1) / 2;
  const double flops = 4 * static_cast<double>(h.size) * pairs;
  struct Arrays {
    Tensor qkv, dqkv, out, lse;
    ops::AttentionOptions options;
  };
  const auto part = [h](const Tensor& packed, int which) {
    const int64_t begin = which == 0 ? 0 : h.heads + (which - 1) * h.kv_heads;
    return packed.slice(2, begin, begin + (which == 0 ? h.heads : h.kv_heads));
  };
  const auto arrays = [h](const OpContext& ctx) {
    const Shape packed{h.batch, h.length, h.heads + 2 * h.kv_heads, h.size};
    Arrays a{varied_tensor(ctx, kB, packed),
             zeros(ctx, kB, packed),
             zeros(ctx, kB, {h.batch, h.length, h.heads, h.size}),
             zeros(ctx, kF, {h.batch, h.heads, h.length}),
             {}};
    a.options.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(h.size)));
    return a;
  };
  const auto forward = [part](const OpContext& ctx, Arrays& a) {
    ops::attention(ctx, {.q = part(a.qkv, 0), .k = part(a.qkv, 1), .v = part(a.qkv, 2)}, a.options,
                   {.out = a.out, .lse = a.lse});
  };
  rows.push_back(row(name + "/forward", flops, 0, [=](const OpContext& ctx) -> Body {
    return [=, a = arrays(ctx)]() mutable { forward(ctx, a); };
  }));
  rows.push_back(row(name + "/backward", 2.5 * flops, 0, [=](const OpContext& ctx) -> Body {
    Arrays a = arrays(ctx);
    forward(ctx, a);
    const Tensor dout = varied_tensor(ctx, kB, a.out.shape());
    return [=]() mutable {
      Tensor dq = part(a.dqkv, 0), dk = part(a.dqkv, 1), dv = part(a.dqkv, 2);
      ops::attention_backward(ctx, {.q = part(a.qkv, 0), .k = part(a.qkv, 1), .v = part(a.qkv, 2)},
                              a.options, {.out = a.out, .lse = a.lse}, dout,
                              {.dq = dq, .dk = dk, .dv = dv});
    };
  }));
}

// y[m, n] = x[m, k] w[n, k]^T and its two gradients.
void add_linear(std::vector<OpCase>& rows, DType dtype, int64_t m, int64_t n, int64_t k) {
  const std::string name = str_cat("linear/", type_text(dtype), "/", m, "x", n, "x", k);
  const double flops = 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  rows.push_back(row(name + "/forward", flops, 0, [=](const OpContext& ctx) -> Body {
    const Tensor x = varied_tensor(ctx, dtype, {m, k}), w = varied_tensor(ctx, dtype, {n, k});
    return [ctx, x, w, y = zeros(ctx, dtype, {m, n})]() mutable { ops::linear(ctx, x, w, {}, y); };
  }));
  rows.push_back(row(name + "/grad_input", flops, 0, [=](const OpContext& ctx) -> Body {
    const Tensor dy = varied_tensor(ctx, dtype, {m, n}), w = varied_tensor(ctx, dtype, {n, k});
    return [ctx, dy, w, dx = zeros(ctx, dtype, {m, k})]() mutable {
      ops::linear_grad_input(ctx, dy, w, dx);
    };
  }));
  rows.push_back(row(name + "/grad_weight", flops, 0, [=](const OpContext& ctx) -> Body {
    const Tensor dy = varied_tensor(ctx, dtype, {m, n}), x = varied_tensor(ctx, dtype, {m, k});
    return [ctx, dy, x, dw = zeros(ctx, kF, {n, k})]() mutable {
      ops::linear_grad_weight(ctx, dy, x, dw);
    };
  }));
}

}  // namespace

Tensor varied_tensor(const OpContext& ctx, DType dtype, const Shape& shape) {
  Tensor out = Tensor::empty(ctx.device, dtype, shape, MemoryTag::kOther);
  const int64_t n = std::min<int64_t>(out.elements(), 999983);  // a prime: copies lie apart
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const int64_t item = dtype_size(dtype);
  std::vector<std::byte> piece(static_cast<size_t>(n * item));
  for (int64_t i = 0; i < n; ++i) {
    const float value = normal(random);
    const bfloat16 narrow = to_bfloat16(value);
    const void* const from = dtype == kF ? static_cast<const void*>(&value) : &narrow;
    std::memcpy(piece.data() + i * item, from, static_cast<size_t>(item));
  }
  const Tensor flat = out.view({out.elements()});
  for (int64_t at = 0; at < out.elements(); at += n) {
    copy_from_host(piece.data(), flat.slice(0, at, std::min(at + n, out.elements())));
  }
  return out;
}

std::vector<OpCase> gpu_rows(RowSizes sizes) {
  const bool tiny = sizes == RowSizes::kTiny;
  const int64_t tokens = tiny ? 16 : 16384;
  std::vector<OpCase> rows;
  add_elementwise(rows, tokens);
  add_activations(rows, tokens);
  add_norms(rows, {kB, tokens * 4, 768}, false);
  add_norms(rows, {kB, tokens * 2, 1600}, false);
  add_norms(rows, {kF, tokens * 2, 1600}, false);
  add_norms(rows, {kB, tokens, 4096}, true);
  add_ends(rows, tokens, tiny ? 211 : 50304);
  add_updates(rows, tiny ? int64_t{1} << 16 : int64_t{1} << 28);
  const std::vector<Heads> full{{32, 12, 12, 1024, 64},  // GPT-2 124M and 1.5B
                                {16, 25, 25, 1024, 64},
                                {4, 32, 8, 4096, 128},  // Llama 8B
                                {1, 32, 8, 16384, 128}};
  const std::vector<Heads> few{{2, 3, 3, 40, 64}, {1, 4, 2, 40, 128}};
  for (const Heads& h : tiny ? few : full) add_attention(rows, h);
  if (tiny) {
    add_linear(rows, kB, 64, 48, 32);
    add_linear(rows, kF, 64, 48, 32);
  } else {
    add_linear(rows, kB, 32768, 3072, 768);
    add_linear(rows, kB, 16384, 6400, 1600);
    add_linear(rows, kB, 8192, 14336, 4096);
    add_linear(rows, kB, 8192, 50304, 1600);
    add_linear(rows, kF, 8192, 3072, 768);
  }
  return rows;
}

}  // namespace ds::bench
