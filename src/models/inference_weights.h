// The weights of a model that only runs: one form per parameter, no masters and no gradients.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/weight_file.h"
#include "nn/model_weights.h"
#include "nn/parameter_reader.h"

namespace ds::models {

// How the matrices of linear layers are held. Activations, and all other parameters, are fp32 with
// fp32 weights and bf16 otherwise.
enum class WeightForm { kFloat32, kBFloat16, kInt8, kInt4 };

// Another form for the matrices of some layers; with any form but fp32 for the rest.
struct WeightOverride {
  std::string match;  // names of parameters; * is any text, ? any character
  WeightForm weights = WeightForm::kBFloat16;
  int64_t group_size = 64;
  bool symmetric = true;
};

struct InferenceOptions {
  WeightForm weights = WeightForm::kBFloat16;
  int64_t group_size = 64;  // of int8 and int4: elements that share a scale; 0 = a row's
  bool symmetric = true;    // of int4: false adds a minimum per group
  int threads = 0;          // 0 = the CPUs this process may run on
  ops::Int8Activations int8_activations = ops::Int8Activations::kNone;  // of int8 and int4
  std::vector<WeightOverride> overrides = {};  // the last one that matches counts
  // Matrices that only products use rest in a file; none: all lie in memory.
  std::optional<WeightFileOptions> file = {};
};

std::string_view weight_form_name(WeightForm form);
// Throws kInvalidArgument naming the forms there are.
WeightForm weight_form_named(std::string_view name);

// What prepared weights take: all of them, and those that a decoded token reads whole (all but
// tables that are only looked up; of experts as many as it goes through).
struct InferenceReport {
  WeightForm weights = WeightForm::kBFloat16;
  int64_t group_size = 0;  // of int8 and int4; 0 = a row's, or another form
  bool symmetric = true;
  int threads = 0;
  int64_t bytes = 0;
  int64_t bytes_per_token = 0;
  int64_t bytes_saved = 0;  // of those that the parameters take in fp32
  WeightReads reads;        // of a file
};

struct ArchitectureInfo;

class InferenceWeights final : public nn::ParameterReader {
 public:
  // Copies what `from`, of the same parameters, holds; `info` is that of their model. `parameters`
  // must outlive this. `here`, by parameter: what is copied, of
  // ranks that share experts; empty: everything.
  InferenceWeights(const OpContext& ctx, const nn::ParameterSet& parameters,
                   const nn::ModelWeights& from, const ArchitectureInfo& info,
                   const InferenceOptions& options, std::vector<bool> here = {});

  // nn::ParameterReader
  Tensor acquire(nn::ParamId id) override;
  void release(nn::ParamId id) noexcept override;
  DType compute_type() const override { return compute_type_; }
  bool stays_in_place() const override { return file_ == nullptr; }
  bool in_step() const override { return false; }
  void expect(std::span<const nn::ParamId> ids) override;
  const nn::ParameterSet& parameters() const override { return parameters_; }
  const ops::QuantizedWeight* quantized(nn::ParamId id) override;
  bool all_in_codes() const override { return all_in_codes_; }
  bool holds(nn::ParamId id) const override {
    return here_.empty() || here_[static_cast<size_t>(id)];
  }

  // fp32 values as products see them: a view, or a copy made from codes or bf16.
  Tensor read(const OpContext& ctx, nn::ParamId id);
  InferenceReport report() const;  // without threads

 private:
  struct Held {
    Tensor dense;  // empty when only products use the parameter and it is quantised
    std::optional<ops::QuantizedWeight> quantized;
    std::optional<WeightFile::Entry> stored = {};  // of one of both, whose tensors are empty then
  };

  bool is_product(nn::ParamId id) const { return parameters_[id].projection || id == output_; }
  bool is_looked_up(nn::ParamId id) const;
  Held make_held(const OpContext& ctx, nn::ParamId id, const nn::ModelWeights& from) const;
  void place_matrices();
  void store(nn::ParamId id, Held& held);
  void check_held(nn::ParamId id) const;

  const nn::ParameterSet& parameters_;
  const InferenceOptions options_;
  const nn::ParamId output_;  // the matrix that makes the logits, or kNoParam
  const DType compute_type_;
  const std::vector<bool> here_;  // what this rank holds; empty: everything
  std::vector<Held> held_;
  bool all_in_codes_ = true;
  std::unique_ptr<WeightFile> file_;  // null: none is stored
  // By parameter, which matrices are to rest in the file, those of experts by layer.
  struct Place {
    bool stored = false;
    std::optional<size_t> layer = {};
  };
  std::vector<Place> places_;
  int64_t bytes_ = 0;
  int64_t bytes_per_token_ = 0;
  int64_t float_bytes_ = 0;  // of the same in fp32
};

}  // namespace ds::models
