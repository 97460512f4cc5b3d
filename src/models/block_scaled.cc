#include "models/block_scaled.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "kernels/fp8/codes.h"

namespace ds::models {
namespace {

constexpr const char* kKey = "quantization_config";
constexpr int64_t kPiece = int64_t{1} << 20;  // codes read at a time

std::array<float, 256> values_of_codes() {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = kernels::fp8_value<kernels::Fp8Format::kE4M3>(static_cast<uint8_t>(code));
  }
  return values;
}

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

std::string text_of(const Json& config, const char* key, const char* fallback) {
  const auto found = config.find(key);
  return found != config.end() && found->is_string() ? found->get<std::string>() : fallback;
}

}  // namespace

std::optional<ScaleBlock> take_block_scales(Json& config) {
  if (!config.is_object()) return std::nullopt;
  const auto found = config.find(kKey);
  if (found == config.end() || found->is_null()) return std::nullopt;
  DS_CHECK(found->is_object(), Code::kConfig, "model config: ", kKey, " must be an object");
  const std::string method = text_of(*found, "quant_method", ""),
                    format = text_of(*found, "fmt", "e4m3");
  DS_CHECK(method == "fp8" && format == "e4m3", Code::kUnsupported, "model config: ", kKey,
           " with quant_method ", printable(method), " and fmt ", printable(format),
           " is not available; fp8 with e4m3 is. Convert the weights to bf16 or fp32, or take a "
           "folder that holds them so");
  ScaleBlock block{128, 128};
  if (const auto size = found->find("weight_block_size"); size != found->end()) {
    const bool good = size->is_array() && size->size() == 2 &&
                      std::all_of(size->begin(), size->end(), [](const Json& n) {
                        return n.is_number_integer() && n >= 1 && n <= 1 << 20;
                      });
    DS_CHECK(good, Code::kConfig, "model config: ", kKey,
             ".weight_block_size must be two positive integers, not ", printable(dump_json(*size)));
    block = {size->at(0).get<int64_t>(), size->at(1).get<int64_t>()};
  }
  config.erase(kKey);
  return block;
}

bool in_codes(const SafetensorsEntry& entry) { return entry.dtype_name == "F8_E4M3"; }

void check_block_scaled(const BlockScaled& matrix, const std::vector<int64_t>& shape) {
  const SafetensorsEntry &codes = *matrix.codes, &scales = *matrix.scales;
  DS_CHECK(codes.shape == shape && shape.size() == 2, Code::kCorrupt, "tensor ",
           printable(codes.name), " has shape ", Shape(codes.shape).text(), ", the model asks for ",
           Shape(shape).text(), shape.size() == 2 ? "" : ", which is no matrix with scales");
  DS_CHECK(codes.size == static_cast<uint64_t>(Shape(shape).elements()), Code::kCorrupt, "tensor ",
           printable(codes.name), " has ", codes.size, " bytes for ", Shape(shape).elements(),
           " codes");
  const std::vector<int64_t> blocks = {divided_up(shape[0], matrix.block[0]),
                                       divided_up(shape[1], matrix.block[1])};
  DS_CHECK(scales.dtype == DType::kFloat32 && scales.shape == blocks, Code::kCorrupt, "tensor ",
           printable(scales.name), " is ", printable(scales.dtype_name), " of shape ",
           Shape(scales.shape).text(), "; F32 of shape ", Shape(blocks).text(),
           " is needed, a scale for each block of ", matrix.block[0], " x ", matrix.block[1]);
}

void read_block_scaled(const OpContext& ctx, const BlockScaled& matrix, int64_t begin,
                       Tensor& out) {
  const int64_t columns = matrix.codes->shape[1], across = divided_up(columns, matrix.block[1]);
  const int64_t end = begin + out.elements();
  if (begin == end) return;
  // The scales of all rows of blocks that the elements lie in.
  const int64_t first = begin / columns / matrix.block[0];
  const int64_t last = (end - 1) / columns / matrix.block[0] + 1;
  std::vector<float> scales(static_cast<size_t>((last - first) * across));
  matrix.scales->read(static_cast<uint64_t>(first * across) * sizeof(float),
                      std::as_writable_bytes(std::span(scales)));
  const std::array<float, 256> values = values_of_codes();
  float* const to = out.data<float>();
  ctx.pool->for_range(end - begin, kPiece, [&](int64_t low, int64_t high) {
    std::vector<std::byte> codes(static_cast<size_t>(high - low));
    matrix.codes->read(static_cast<uint64_t>(begin + low), codes);
    for (int64_t i = low; i < high; ++i) {
      const int64_t row = (begin + i) / columns, column = (begin + i) % columns;
      const int64_t at = (row / matrix.block[0] - first) * across + column / matrix.block[1];
      to[i] = values[static_cast<size_t>(codes[static_cast<size_t>(i - low)])] *
              scales[static_cast<size_t>(at)];
    }
  });
}

}  // namespace ds::models
