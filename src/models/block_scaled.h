// Matrices of files in codes of 8 bits (F8_E4M3), each block of which has a scale: how DeepSeek-V3
// is published. They are read as the numbers that they stand for.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "ops/context.h"

namespace ds::models {

// Rows and columns of a block.
using ScaleBlock = std::array<int64_t, 2>;

// What `quantization_config` of a config.json says, which then leaves the document: the weights
// that are read are no codes any more. Nothing where there is no such member; kUnsupported, with a
// message, for other codes than these.
std::optional<ScaleBlock> take_block_scales(Json& config);

// A matrix in codes with its scales, fp32 [rows / block, columns / block], rounded up.
struct BlockScaled {
  const SafetensorsEntry* codes = nullptr;
  const SafetensorsEntry* scales = nullptr;
  ScaleBlock block{};
};
bool in_codes(const SafetensorsEntry& entry);
// Throws unless codes and scales fit each other and `shape`.
void check_block_scaled(const BlockScaled& matrix, const std::vector<int64_t>& shape);
// Elements from `begin` on to `out`, flat fp32.
void read_block_scaled(const OpContext& ctx, const BlockScaled& matrix, int64_t begin, Tensor& out);

}  // namespace ds::models
