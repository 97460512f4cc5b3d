// What the tests of layers that several ranks compute together share: parameters that are cut as
// their rules say, and the two ends of such a pair of layers.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/shard_spec.h"
#include "nn/layers.h"

namespace ds::mesh_test {

inline void sum_over(Communicator& group, const Tensor& x) {
  group.all_reduce(x, ReduceOp::kSum, {.label = "tensor parallel", .blocking = true})->wait();
}

// Parameters and gradients as plain tensors.
class Weights : public nn::ParameterReader, public nn::GradientSink {
 public:
  explicit Weights(const OpContext& ctx) : ctx_(ctx) {}

  nn::ParamId add(const std::string& name, const Shape& shape, const SplitRule& rule) {
    nn::Parameter p;
    p.name = name;
    p.shape = shape;
    p.split = rule;
    return set_.add(std::move(p));
  }
  // Cuts what `global` holds of every parameter for a rank of the mesh.
  void cut(const std::vector<std::vector<float>>& global, const MeshShape& mesh, int rank) {
    for (nn::ParamId id = 0; id < set_.size(); ++id) {
      specs_.push_back(nn::shard_spec(set_[id], mesh, rank));
      values_.push_back(zeros(specs_.back().local));
      gradients_.push_back(zeros(specs_.back().local));
      visit(id, [&](int64_t local, int64_t whole, bool) {
        values_.back().data<float>()[local] =
            global[static_cast<size_t>(id)][static_cast<size_t>(whole)];
      });
    }
  }
  // Adds up the gradients of what several ranks hold alike. Such boxes are rows.
  void sum_copies(const Mesh& mesh) const {
    for (nn::ParamId id = 0; id < set_.size(); ++id) {
      const ShardSpec& spec = specs_[static_cast<size_t>(id)];
      for (const ShardBox& box : spec.boxes) {
        if (box.copies == 1) continue;
        const int64_t begin = box.local_offset[0], end = begin + box.global.extent[0];
        const Tensor rows = gradients_[static_cast<size_t>(id)].slice(0, begin, end);
        sum_over(*mesh.placed(spec.copies_of(box)).comm, rows);
      }
    }
  }
  // Writes the rank's gradients to where they belong in whole ones.
  void join_gradients(std::vector<std::vector<float>>& global) const {
    for (nn::ParamId id = 0; id < set_.size(); ++id) {
      visit(id, [&](int64_t local, int64_t whole, bool counts) {
        if (!counts) return;
        global[static_cast<size_t>(id)][static_cast<size_t>(whole)] =
            gradients_[static_cast<size_t>(id)].data<float>()[local];
      });
    }
  }

  Tensor acquire(nn::ParamId id) override { return values_[static_cast<size_t>(id)]; }
  const Shape& shape(nn::ParamId id) const override {
    return specs_[static_cast<size_t>(id)].local;
  }
  void release(nn::ParamId) noexcept override {}
  DType compute_type() const override { return DType::kFloat32; }
  const nn::ParameterSet& parameters() const override { return set_; }
  Tensor gradient(nn::ParamId id) override { return gradients_[static_cast<size_t>(id)]; }
  nn::GradientTarget gradient_target(nn::ParamId id) override { return {gradient(id), true}; }
  void gradient_complete(nn::ParamId) override {}

  Tensor zeros(const Shape& shape) const {
    return Tensor::zeros(ctx_.device, DType::kFloat32, shape, MemoryTag::kOther);
  }

 private:
  // body(index in the local tensor, index in the whole one, whether this rank's counts).
  void visit(nn::ParamId id, const std::function<void(int64_t, int64_t, bool)>& body) const {
    const ShardSpec& spec = specs_[static_cast<size_t>(id)];
    for (const ShardBox& box : spec.boxes) {
      const bool matrix = spec.global.dims() == 2;
      const int64_t columns = matrix ? box.global.extent[1] : 1;
      for (int64_t r = 0; r < box.global.extent[0]; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t local =
              matrix ? (box.local_offset[0] + r) * spec.local[1] + box.local_offset[1] + c
                     : box.local_offset[0] + r;
          const int64_t whole =
              matrix ? (box.global.offset[0] + r) * spec.global[1] + box.global.offset[1] + c
                     : box.global.offset[0] + r;
          body(local, whole, spec.counts(box));
        }
      }
    }
  }

  OpContext ctx_;
  nn::ParameterSet set_;
  std::vector<ShardSpec> specs_;
  std::vector<Tensor> values_, gradients_;
};

inline Tensor copy_of(nn::Tape& tape, const Tensor& x) {
  Tensor y = tape.new_activation(x.dtype(), x.shape());
  std::memcpy(y.raw(), x.raw(), static_cast<size_t>(x.bytes()));
  return y;
}

// x for layers whose ranks each make a part of the output: their gradients of x are added up.
inline nn::Value to_parts(nn::Tape& tape, const nn::Value& x, Communicator& group) {
  nn::Value y = tape.make_value(copy_of(tape, x.data));
  tape.record([in = x.slot, out = y.slot, &group](nn::Tape& t) {
    const Tensor gradient = copy_of(t, out->gradient());
    sum_over(group, gradient);
    in->add(t.ctx(), gradient, true);
  });
  return y;
}

// The sum of what every rank has; each has the whole gradient of it.
inline nn::Value from_parts(nn::Tape& tape, const nn::Value& x, Communicator& group) {
  nn::Value y = tape.make_value(copy_of(tape, x.data));
  sum_over(group, y.data);
  tape.record(
      [in = x.slot, out = y.slot](nn::Tape& t) { in->add(t.ctx(), out->gradient(), false); });
  return y;
}

}  // namespace ds::mesh_test
