// The choices of algorithms for matrix products of the context's GPU (kernels/matmul/
// product_choices.h). On the CPU nothing is timed.
#pragma once

#include <string>
#include <string_view>

#include "ops/context.h"

namespace ds::ops {

// Whether products of the context can be timed at all.
bool times_products(const OpContext& ctx);

// Gives up what was timed and times what comes first from now on, until the end.
void begin_product_timing(const OpContext& ctx);
void end_product_timing(const OpContext& ctx);

int64_t timed_products(const OpContext& ctx);
void forget_timed_products(const OpContext& ctx);

// As bytes for another process, which takes over all of them or none: then the text says why.
std::string export_timed_products(const OpContext& ctx);
std::string import_timed_products(const OpContext& ctx, std::string_view bytes);

}  // namespace ds::ops
