// Rotary frequencies in the ways models scale them to longer texts: default, linear (Chen et al.,
// arXiv:2306.15595), dynamic NTK, llama3, YaRN (Peng et al., arXiv:2309.00071), each over a part of
// the head. Formulas and keys are those of Hugging Face's modeling_rope_utils.
#pragma once

#include <mutex>
#include <vector>

#include "models/config_reader.h"
#include "nn/layers.h"

namespace ds::models {

enum class RotaryScaling { kDefault, kLinear, kDynamic, kLlama3, kYarn };

struct RotaryConfig {
  RotaryScaling scaling = RotaryScaling::kDefault;
  int64_t channels = 0;  // of a head that turn: even
  double theta = 10000;
  double factor = 1;
  int64_t max_positions = 0;                                   // max_position_embeddings
  int64_t original_positions = 0;                              // before scaling: llama3 and yarn
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;                        // yarn
  bool truncate = true;                                        // yarn
  double attention_factor = 1;                                 // multiplies cosines and sines
  double magnitude_of_all =
      0;  // yarn's mscale_all_dim, which scores of some models follow; 0: none
};

struct RotaryDefaults {
  double theta = 10000;
  double partial = 1;
  const char* theta_key = "rope_theta";               // old key of the base
  const char* partial_key = "partial_rotary_factor";  // old key of the turning part
  bool partial_allowed = true;
};

// Reads rope_parameters, or the old keys: base, part and rope_scaling {type or rope_type, ...}.
RotaryConfig read_rotary(const ConfigReader& read, int64_t head_size, int64_t max_positions,
                         const RotaryDefaults& defaults);

// Angles per position of each pair of channels; `length` is what dynamic scaling adapts to.
std::vector<double> rotary_frequencies(const RotaryConfig& config, int64_t length);

// How far positions may go under this scaling.
int64_t rotary_positions(const RotaryConfig& config);

// Tables for the positions in use, grown as longer texts come; safe from any thread.
class RotaryTables {
 public:
  explicit RotaryTables(const RotaryConfig& config) : config_(config) {}
  // Rows for every position in position_ids (int32), which lie below `positions`; 0 = ask them.
  nn::RotaryTable rows(const OpContext& ctx, const Tensor& position_ids,
                       int64_t positions = 0) const;

 private:
  static int64_t reach(const Tensor& position_ids);

  RotaryConfig config_;
  mutable std::mutex mutex_;
  mutable nn::RotaryTable table_;
  mutable int64_t length_ = 0;  // that the frequencies in the table were made for
};

}  // namespace ds::models
