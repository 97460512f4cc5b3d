// Balance of experts without a loss (Wang et al., arXiv:2408.15664; DeepSeek-V3, arXiv:2412.19437):
// after each step the bias by which a router chooses grows for experts that got few tokens, and
// shrinks for those that got many.
#pragma once

namespace ds {

class ExpertLoads;
struct RunContext;

// Of a step that was applied, whose `loads` are not finished yet: every bias of a router that is
// trained moves by its rate, up where the expert's load in all micro batches of all ranks is below
// the mean, down where it is above. Every rank calls it.
void move_router_biases(RunContext& run, const ExpertLoads& loads);

}  // namespace ds
