// BERT (Devlin et al., arXiv:1810.04805): the post-norm encoder alone, with the masked-LM head, or
// with a classifier over the pooled first token.
#pragma once

#include "models/architecture.h"

namespace ds::models {

std::unique_ptr<Architecture> make_bert(const Json& config);
std::unique_ptr<Architecture> make_bert_masked_lm(const Json& config);
std::unique_ptr<Architecture> make_bert_classifier(const Json& config);

}  // namespace ds::models
