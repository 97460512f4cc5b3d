// The weights that a model computes with while it trains, as nn reads them: whole, gathered bucket
// by bucket (ZeRO stage 3), in tiles, or sent from the host. They follow the masters.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "nn/borrowed_memory.h"
#include "nn/fp8.h"
#include "nn/parameter_reader.h"
#include "zero/fp32_weights.h"
#include "zero/share_options.h"
#include "zero/state_arrays.h"
#include "zero/weight_gatherer.h"

namespace ds::zero {

class Weights : public nn::ParameterReader {
 public:
  explicit Weights(StateArrays& arrays);

  // nn::ParameterReader
  const nn::ParameterSet& parameters() const override { return arrays_.parameters; }
  Tensor acquire(nn::ParamId id) override;
  void release(nn::ParamId id) noexcept override;
  const nn::Tiling* tiling(nn::ParamId id) const override {
    return arrays_.layout.flat().tiling(id);
  }
  Tensor acquire_tile(nn::ParamId id, int64_t tile) override;
  void release_tile(nn::ParamId id, int64_t tile) noexcept override;
  DType compute_type() const override { return compute_type_; }
  bool holds(nn::ParamId id) const override { return arrays_.holds(id); }
  bool stays_in_place() const override;
  nn::Fp8Linears* fp8() override { return fp8_.get(); }
  // Null ends it.
  void set_fp8(std::unique_ptr<nn::Fp8Linears> fp8) { fp8_ = std::move(fp8); }

  // acquire() of several: all are under way before one is waited for. None is held when it throws.
  std::vector<Tensor> acquire_all(std::span<const nn::ParamId> ids);
  bool in_use() const { return open_guards_ > 0; }

  // Sends again what could not be sent from the host after an update. Before work that reads
  // weights without acquiring them: what was recorded.
  void send_stale();

  // Around what uses weights: a forward with its backward, or a forward alone.
  void begin_pass();
  void end_pass();
  // Without an end: what it gathered goes.
  void drop_pass() noexcept;

  // As TrainState has arranged the arrays: the type that they have, and copies in fp32.
  void set_compute_type(DType type);
  // Stage 3: from here on buckets are gathered when they are used.
  void gather_from(const OpContext& ctx, const ShareOptions& options);
  void stop_gathering() { gatherer_.reset(); }

  // Weights follow after masters were written: all of them, also frozen ones; those of one
  // parameter, which was given `value` whole; or what this rank owns of one (every rank, where
  // shared).
  void follow_masters(const OpContext& ctx);
  void follow_master(const OpContext& ctx, nn::ParamId id, const Tensor& value);
  void follow_owned_master(const OpContext& ctx, nn::ParamId id);
  // After an update that wrote masters and the copy in the compute type together.
  void follow_update(const OpContext& ctx);

  // A whole parameter where it lies whole: as it is computed with, and the master where that is
  // whole, else the weight.
  Tensor view(nn::ParamId id) const;
  Tensor current_value(nn::ParamId id) const;
  // It is computed with its master, which is written as one.
  bool computes_with_master(nn::ParamId id) const;
  bool whole() const { return !arrays_.weights().compact && !lost_ && !arrays_.layout.in_parts(); }

  // When ranks part, pieces of weights are of no use; check_not_lost throws kState from then on.
  void lose() { lost_ = true; }
  void check_not_lost() const;

  // Memory of the caller that receives each new value of a parameter, in its own type.
  nn::BorrowedMemory& borrowed() { return borrowed_; }
  const nn::BorrowedMemory& borrowed() const { return borrowed_; }

 private:
  size_t tile_bucket(nn::ParamId id, int64_t tile) const {
    return arrays_.layout.flat().bucket_of(id) + static_cast<size_t>(tile);
  }
  Tensor whole_of_tiles(nn::ParamId id);
  Tensor whole_bucket(const Bucket& bucket) const;  // where the ranks' pieces of it come together
  WeightRoute::Piece piece(const Bucket& bucket) const;  // this rank's
  template <class Part>
  void copy_masters(const OpContext& ctx, const Part& part);
  void follow_host_master(const OpContext& ctx, nn::ParamId id, const Tensor& value);
  void gather(bool frozen_too);
  void changed(const OpContext& ctx);

  StateArrays& arrays_;
  DType compute_type_ = DType::kFloat32;
  Fp32Weights fp32_;
  nn::BorrowedMemory borrowed_;
  std::unique_ptr<WeightGatherer> gatherer_;  // stage 3
  std::unique_ptr<nn::Fp8Linears> fp8_;
  int open_guards_ = 0;
  bool lost_ = false;
};

}  // namespace ds::zero
