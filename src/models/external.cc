// Tensors between masters and safetensors files, converted in pieces so that no second copy of a
// model exists.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/checksum.h"
#include "base/file.h"
#include "base/float16.h"
#include "models/weight_loaders.h"
#include "models/weights.h"
#include "ops/elementwise.h"
#include "tensor/transfer.h"

namespace ds::models {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kConverted = int64_t{1} << 20;  // elements converted at a time

// Shape in the file: the model's, or its transpose.
std::vector<int64_t> external_shape(const nn::Parameter& p, bool transposed) {
  std::vector<int64_t> shape(p.shape.sizes().begin(), p.shape.sizes().end());
  if (transposed) std::swap(shape.at(0), shape.at(1));
  return shape;
}

bool floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

float load(const std::byte* at, DType dtype) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kBFloat16 ? to_float(bfloat16{bits}) : to_float(float16{bits});
}

std::span<std::byte> writable_bytes_of(const Tensor& x) {
  return {static_cast<std::byte*>(x.raw()), static_cast<size_t>(x.bytes())};
}

// Reads a piece of an entry with all threads: copies from the page cache are bound by one.
void read_shared(const OpContext& ctx, const SafetensorsEntry& entry, int64_t offset,
                 std::span<std::byte> out) {
  constexpr int64_t kShare = int64_t{1} << 20;
  ctx.pool->for_range(static_cast<int64_t>(out.size()), kShare, [&](int64_t low, int64_t high) {
    entry.read(static_cast<uint64_t>(offset + low),
               out.subspan(static_cast<size_t>(low), static_cast<size_t>(high - low)));
  });
}

// Elements of the tensor from `begin` on to `out`, flat fp32.
void read_plain(const OpContext& ctx, const SafetensorsEntry& entry, int64_t begin, Tensor& out) {
  const int64_t n = out.elements(), item = dtype_size(*entry.dtype);
  if (*entry.dtype == DType::kFloat32) {
    return read_shared(ctx, entry, begin * item, writable_bytes_of(out));
  }
  for (int64_t at = 0; at < n; at += kConverted) {
    const int64_t end = std::min(n, at + kConverted);
    const Tensor piece = ctx.workspace(*entry.dtype, {end - at});
    read_shared(ctx, entry, (begin + at) * item, writable_bytes_of(piece));
    Tensor to = out.slice(0, at, end);
    ops::cast(ctx, piece, to);
  }
}

// The same of a file that holds the transpose of [rows, columns]: strips of its lines are read, of
// each line what belongs to the rows that are asked for.
void read_transposed(const OpContext& ctx, const SafetensorsEntry& entry, const Shape& shape,
                     int64_t begin, Tensor& out) {
  const int64_t rows = shape[0], columns = shape[1];
  const DType dtype = *entry.dtype;
  const int64_t item = dtype_size(dtype);
  float* const to = out.data<float>();
  const int64_t end = begin + out.elements(), first_row = begin / columns;
  const int64_t wanted = (end + columns - 1) / columns - first_row;
  const int64_t lines = std::clamp<int64_t>(kConverted / 4 / wanted, 1, columns);
  const Tensor strip = ctx.workspace(dtype, {lines * wanted});
  constexpr int64_t kTile = 32;
  for (int64_t first = 0; first < columns; first += lines) {
    const int64_t count = std::min(lines, columns - first);
    const auto bytes = writable_bytes_of(strip).first(static_cast<size_t>(count * wanted * item));
    const auto line = static_cast<size_t>(wanted * item);
    if (wanted == rows) {
      read_shared(ctx, entry, first * rows * item, bytes);
    } else {
      ctx.pool->for_range(count, kTile, [&](int64_t low, int64_t high) {
        for (int64_t c = low; c < high; ++c) {
          entry.read(static_cast<uint64_t>(((first + c) * rows + first_row) * item),
                     bytes.subspan(static_cast<size_t>(c) * line, line));
        }
      });
    }
    ctx.pool->for_range(wanted, kTile, [&](int64_t low, int64_t high) {
      for (int64_t c = 0; c < count; ++c) {
        const std::byte* const from = bytes.data() + static_cast<size_t>(c) * line;
        for (int64_t r = low; r < high; ++r) {
          const int64_t at = (first_row + r) * columns + first + c;
          if (at >= begin && at < end) to[at - begin] = load(from + r * item, dtype);
        }
      }
    });
  }
}

void read_part(const OpContext& ctx, const SafetensorsEntry& entry, bool transposed,
               const Shape& shape, int64_t begin, Tensor& out) {
  if (out.elements() == 0) return;
  if (transposed) {
    read_transposed(ctx, entry, shape, begin, out);
  } else {
    read_plain(ctx, entry, begin, out);
  }
}

// Weights of files; those that the files lack come from another source.
class FileWeights : public nn::WeightLoader {
 public:
  FileWeights(std::shared_ptr<const SafetensorsModel> file,
              std::map<nn::ParamId, ExternalTensor> tensors,
              std::shared_ptr<const nn::WeightLoader> rest)
      : file_(std::move(file)), tensors_(std::move(tensors)), rest_(std::move(rest)) {}

  void fill(const OpContext& ctx, nn::ParamId id, const nn::Parameter& p, int64_t begin,
            Tensor& out) const override {
    const auto found = tensors_.find(id);
    if (found == tensors_.end()) return rest_->fill(ctx, id, p, begin, out);
    const ExternalTensor& tensor = found->second;
    if (tensor.scales != nullptr) {
      return read_block_scaled(ctx, {tensor.entry, tensor.scales, tensor.block}, begin, out);
    }
    read_part(ctx, *tensor.entry, tensor.transposed, p.shape, begin, out);
  }

  // Of names and shapes, and of a few bytes of every tensor: enough to tell other files, without
  // reading them.
  uint64_t fingerprint() const override {
    constexpr size_t kSample = 64;
    constexpr uint64_t kSamples = 4;
    uint64_t sum = mixed(3, rest_ ? rest_->fingerprint() : 0);
    for (const auto& [id, tensor] : tensors_) {
      const SafetensorsEntry& entry = *tensor.entry;
      sum = mixed(sum, static_cast<uint64_t>(id) * 2 + (tensor.transposed ? 1 : 0));
      sum = mixed(sum, xxh3_64(std::as_bytes(std::span(entry.name))));
      sum = mixed(sum, xxh3_64(std::as_bytes(std::span(entry.dtype_name))));
      sum = mixed(sum, xxh3_64(std::as_bytes(std::span(entry.shape))));
      for (uint64_t i = 0; i < kSamples; ++i) {
        const uint64_t at = entry.size / kSamples * i;
        std::array<std::byte, kSample> bytes;
        const auto part = std::span(bytes).first(std::min<uint64_t>(kSample, entry.size - at));
        entry.read(at, part);
        sum = mixed(sum, xxh3_64(part));
      }
    }
    return sum;
  }

 private:
  std::shared_ptr<const SafetensorsModel> file_;  // keeps the entries
  std::map<nn::ParamId, ExternalTensor> tensors_;
  std::shared_ptr<const nn::WeightLoader> rest_;
};

// Elements [begin, end) of the transposed tensor, in fp32.
Tensor transposed_piece(const OpContext& ctx, const Tensor& master, int64_t begin, int64_t end) {
  const int64_t rows = master.size(0), columns = master.size(1);
  const float* const from = master.data<float>();
  Tensor piece = ctx.workspace(DType::kFloat32, {end - begin});
  float* const to = piece.data<float>();
  ctx.pool->for_range(end - begin, 1 << 14, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t at = begin + i;
      to[i] = from[at % rows * columns + at / rows];
    }
  });
  return piece;
}

std::span<const std::byte> bytes_of(const Tensor& x) {
  return {static_cast<const std::byte*>(x.raw()), static_cast<size_t>(x.bytes())};
}

}  // namespace

void check_external(const Model& model, nn::ParamId id, const SafetensorsEntry& entry,
                    bool transposed) {
  DS_CHECK(
      entry.dtype && floating(*entry.dtype), Code::kUnsupported, "tensor ", printable(entry.name),
      " has type ", printable(entry.dtype_name),
      "; weights are read from F32, BF16 and F16, and from F8_E4M3 with the scales of its blocks "
      "beside it (NAME_scale_inv) and a quantization_config that tells their size");
  const std::vector<int64_t> expected = external_shape(model.parameters()[id], transposed);
  DS_CHECK(entry.shape == expected, Code::kCorrupt, "tensor ", printable(entry.name), " has shape ",
           Shape(entry.shape).text(), ", the model asks for ", Shape(expected).text());
}

bool same_external(const OpContext& ctx, const SafetensorsEntry& a, const SafetensorsEntry& b) {
  if (a.shape != b.shape) return false;
  if (!a.dtype || !b.dtype || !floating(*a.dtype) || !floating(*b.dtype)) return false;
  const int64_t elements = Shape(a.shape).elements();
  for (int64_t begin = 0; begin < elements; begin += kConverted) {
    const int64_t count = std::min(kConverted, elements - begin);
    Tensor of_a = ctx.workspace(DType::kFloat32, {count});
    Tensor of_b = ctx.workspace(DType::kFloat32, {count});
    read_plain(ctx, a, begin, of_a);
    read_plain(ctx, b, begin, of_b);
    const float *const x = of_a.data<float>(), *const y = of_b.data<float>();
    for (int64_t i = 0; i < count; ++i) {
      const bool both_nan = std::isnan(x[i]) && std::isnan(y[i]);
      if (x[i] != y[i] && !both_nan) return false;
    }
  }
  return true;
}

std::shared_ptr<const nn::WeightLoader> file_weights(std::shared_ptr<const SafetensorsModel> file,
                                                     std::map<nn::ParamId, ExternalTensor> tensors,
                                                     std::shared_ptr<const nn::WeightLoader> rest) {
  return std::make_shared<FileWeights>(std::move(file), std::move(tensors), std::move(rest));
}

SafetensorsTensor external_tensor(Model& model, nn::ParamId id, const ExternalName& external,
                                  DType dtype) {
  const bool transposed = external.transposed;
  SafetensorsTensor out;
  out.name = external.name;
  out.dtype = dtype;
  out.shape = external_shape(model.parameters()[id], transposed);
  out.produce = [&model, id, transposed, dtype](const ByteSink& sink) {
    const OpContext ctx = model.host_context();
    const auto put = [&](const Tensor& piece) {
      if (dtype == DType::kFloat32) return sink(bytes_of(piece));
      Tensor narrow = ctx.workspace(dtype, piece.shape());
      ops::cast(ctx, piece, narrow);
      sink(bytes_of(narrow));
    };
    const auto put_all = [&](int64_t elements, const auto& piece) {
      for (int64_t begin = 0, end; begin < elements; begin = end) {
        end = std::min(elements, begin + kConverted);
        put(piece(begin, end));
      }
    };
    if (!transposed) {
      model.read_in_parts(model.context(), id, [&](const Tensor& part, int64_t) {
        put_all(part.elements(), [&](int64_t begin, int64_t end) {
          return to_host(part.slice(0, begin, end), ctx.device);
        });
      });
      return;
    }
    const Tensor master = to_host(model.read(model.context(), id), ctx.device);
    put_all(master.elements(),
            [&](int64_t begin, int64_t end) { return transposed_piece(ctx, master, begin, end); });
  };
  return out;
}

void export_model(Model& model, const fs::path& folder, DType dtype, int64_t max_shard_bytes) {
  DS_CHECK(floating(dtype), Code::kInvalidArgument,
           "weights are exported as float32, bfloat16 or float16, not ", dtype_name(dtype));
  DS_CHECK(max_shard_bytes >= 0, Code::kInvalidArgument, "max_shard_bytes is ", max_shard_bytes,
           "; 0 (no limit) or more is needed");
  DS_CHECK(!model.parameters().adapted(), Code::kState,
           "the model carries adapters: merge them first, or save them alone");
  std::vector<SafetensorsTensor> tensors;
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    tensors.push_back(external_tensor(model, id,
                                      model.has_architecture()
                                          ? model.architecture().external_name(id)
                                          : ExternalName{model.parameters()[id].name},
                                      model.parameters()[id].keeps_fp32 ? DType::kFloat32 : dtype));
  }
  const int64_t shard_bytes = max_shard_bytes == 0 ? INT64_MAX : max_shard_bytes;
  if (!model.writes_files()) return produce_safetensors(tensors, shard_bytes);
  make_folders(folder);
  write_safetensors_folder(folder, tensors, shard_bytes);
  if (!model.has_architecture()) return;
  Json config = model.architecture().config();
  config["torch_dtype"] = std::string(dtype_name(dtype));
  // Newer readers look here first.
  if (config.contains("dtype")) config["dtype"] = std::string(dtype_name(dtype));
  write_file_durably(folder / "config.json", dump_json(config, 2) + "\n");
}

}  // namespace ds::models
