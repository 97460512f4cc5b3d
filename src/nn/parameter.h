// Parameters by logical identity: name, global shape, aliases, how they start, whether they decay
// and how they may be cut. What a rank has of one is a ShardSpec; where their bytes lie is somebody
// else's business (ParameterReader, GradientSink).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mesh/shard_spec.h"
#include "tensor/tensor.h"

namespace ds::nn {

using ParamId = int32_t;
inline constexpr ParamId kNoParam = -1;

enum class Init { kZeros, kOnes, kNormal, kUniform };

struct Parameter {
  std::string name;
  Shape shape;
  Init init = Init::kZeros;
  double init_std = 0;  // for kNormal; for kUniform the bound of [-bound, bound)
  bool decays = false;  // weight decay applies (matrices, not biases and norms)
  bool trainable = true;
  std::vector<std::string> aliases = {};  // names of other places that use the same tensor
  std::string group = {};         // of the optimizer's hyperparameters; "" = the default ones
  DType dtype = DType::kFloat32;  // in which a caller holds a parameter of its own
  int64_t expert = -1;            // index of the expert it belongs to, -1 = none
  bool projection = false;        // weight [out, in] of a linear layer that may carry an adapter
  bool may_be_tiled = false;      // linear layers alone read it: they need a part at a time only
  bool keeps_numbers = false;     // more than linear layers read it: codes would not do
  // Fp32 whatever the model computes in and is exported in, and moved by no gradient: always
  // frozen.
  bool keeps_fp32 = false;
  SplitRule split = {};  // how ranks that compute its layer together may share it
};

// What `rank` holds of it; `stages` as in ShardRequest.
inline ShardSpec shard_spec(const Parameter& p, const MeshShape& mesh, int rank,
                            std::vector<int> stages = {}) {
  return make_shard_spec({p.name, p.shape, p.split, p.expert, std::move(stages)}, mesh, rank);
}

// A low-rank update beside a weight [out, in]: y += scale * dropout(x) a^T b^T (Hu et al.,
// arXiv:2106.09685). nn::linear applies it; no model family knows of it.
struct Adapter {
  ParamId a = kNoParam;  // [rank, in]
  ParamId b = kNoParam;  // [out, rank]
  float scale = 1;
  double dropout = 0;
};

class ParameterSet {
 public:
  ParamId add(Parameter parameter);
  const Parameter& operator[](ParamId id) const { return parameters_[static_cast<size_t>(id)]; }
  ParamId size() const { return static_cast<ParamId>(parameters_.size()); }
  int64_t elements() const;
  // Of those that one token goes through where it takes so many of each layer's experts.
  int64_t active_elements(int64_t experts_per_token) const;
  // Finds by name or alias; throws kNotFound with the nearest name.
  ParamId find(const std::string& name) const;
  // kNoParam when there is none.
  ParamId lookup(const std::string& name) const;

  // Puts an adapter beside a weight; both of its matrices belong to this set.
  void adapt(ParamId weight, const Adapter& adapter);
  // nullptr when the weight has none.
  const Adapter* adapter(ParamId weight) const;
  bool adapted() const { return !adapters_.empty(); }

 private:
  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, ParamId> by_name_;
  std::unordered_map<ParamId, Adapter> adapters_;  // by weight
};

}  // namespace ds::nn
