// BERT (Devlin et al., arXiv:1810.04805): the post-norm encoder alone, with the masked-LM head, or
// with a classifier or the order of two texts over the pooled first token.
#pragma once

#include "models/architecture.h"

namespace ds::models {

std::unique_ptr<Architecture> make_bert(const Json& config);
std::unique_ptr<Architecture> make_bert_masked_lm(const Json& config);
std::unique_ptr<Architecture> make_bert_classifier(const Json& config);
// Whether the second text follows the first one (0) or not (1), from the pooled first token: the
// head that is pretrained beside the masked LM.
std::unique_ptr<Architecture> make_bert_order(const Json& config);

}  // namespace ds::models
