// The weights of a model that no engine trains: fp32, whole on one device. They do not exist before
// somebody needs them.
#pragma once

#include <memory>

#include "nn/flat_order.h"
#include "nn/model_weights.h"

namespace ds::nn {

class HeldWeights final : public ModelWeights, public ParameterReader {
 public:
  // What the loader will make; zeros, made now, without one. `parameters` must outlive this.
  HeldWeights(const ParameterSet& parameters, std::shared_ptr<Device> device,
              std::shared_ptr<const WeightLoader> loader = nullptr);
  HeldWeights(const ParameterSet& parameters, std::shared_ptr<Device> device, WholeWeights whole);

  const WholeWeights& whole_weights() const { return whole_; }
  // Null once the weights exist; the functions below need that.
  const std::shared_ptr<const WeightLoader>& loader() const { return whole_.loader; }
  const Tensor& all() const { return whole_.array; }
  Tensor view(ParamId id) const;
  // To compute with them where they lie.
  OpContext context(const OpContext& ctx) const {
    return whole_.host ? OpContext{whole_.host, ctx.pool} : ctx;
  }

  // ModelWeights
  void make(const OpContext& ctx) override;
  ParameterReader& reader() override;
  void check_not_lost() const override;
  Tensor read(const OpContext& ctx, ParamId id) const override;
  void write(const OpContext& ctx, ParamId id, const Tensor& value) override;
  void read_in_parts(const OpContext& ctx, ParamId id, int64_t unit,
                     const PartTaker& take) const override;
  bool whole() const override { return !whole_.lost; }
  Tensor view(const OpContext& ctx, ParamId id) override;
  bool computes_with_master(ParamId) const override { return true; }
  BorrowedMemory& borrowed() override { return whole_.borrowed; }
  bool writes_files() const override { return true; }
  WholeWeights take(const OpContext& ctx) override;

  // ParameterReader
  Tensor acquire(ParamId id) override;
  void release(ParamId) noexcept override {}
  DType compute_type() const override { return DType::kFloat32; }
  bool stays_in_place() const override { return true; }
  const ParameterSet& parameters() const override { return parameters_; }

 private:
  const ParameterSet& parameters_;
  const std::shared_ptr<Device> device_;
  FlatOrder order_;
  WholeWeights whole_;
};

}  // namespace ds::nn
