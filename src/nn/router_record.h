// What the routers of one pass over a model leave for others: losses that training adds to the
// model's own, whose gradients need what all layers chose, and how many tokens went to whom.
#pragma once

#include <cstdint>
#include <vector>

namespace ds::nn {

// Losses that keep a router from choosing few experts, and its logits small.
struct RouterLosses {
  // experts * the sum over experts of the mean probability and the mean number of routes that a
  // token has to it (Switch Transformer, arXiv:2101.03961).
  float balance = 0;  // what it is multiplied by; 0: none
  // Means over the tokens of all layers together, as Transformers takes them; otherwise the losses
  // of the layers are added up.
  bool pooled = false;
  int64_t counted_choices = 0;  // the first so many of each token are routes; 0: all
  bool per_choice = false;      // divided by their number, so that equal loads give 1
  // The mean squared logarithm of the sum of e^logit (ST-MoE, arXiv:2202.08906), added up.
  float z = 0;
};

class RouterRecord {
 public:
  struct Layer {
    RouterLosses losses;
    // Of the tokens that losses count.
    double tokens = 0;
    std::vector<double> probabilities;  // sums, by expert
    std::vector<double> routes;
    double z_sum = 0;
    // Of all tokens, the last two by expert.
    int64_t all_tokens = 0;
    std::vector<int64_t> chosen;
    std::vector<int64_t> kept;  // what its capacity let in
  };

  // What a layer of the model has chosen; a layer that is computed again says the same again.
  void set(int64_t index, Layer layer);
  const std::vector<Layer>& layers() const { return layers_; }

  // All that is added to the loss of the batch.
  double loss() const;
  double balance_loss() const;
  double z_loss() const;
  // The gradient of that loss by the probability of each expert that one counted token has in the
  // layer. Empty where there is none.
  std::vector<float> balance_gradient(int64_t index) const;

 private:
  // The layer alone, or all that are pooled.
  Layer pool_of(const Layer& layer) const;

  std::vector<Layer> layers_;  // by index; those without a router are empty
};

}  // namespace ds::nn
