#include "models/weights.h"

#include <bit>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "base/file.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"

namespace ds::models {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kConfigLimit = int64_t{16} << 20;

// IEEE half precision, as older exports store weights.
float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // infinity and NaN
    return std::bit_cast<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  }
  // Scaling by 2^112 moves the exponent bias exactly, subnormals included.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1.0p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

float element(const SafetensorsEntry& entry, int64_t i) {
  const std::byte* const at = entry.bytes.data() + i * dtype_size(*entry.dtype);
  if (*entry.dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return *entry.dtype == DType::kBFloat16 ? to_float(bfloat16{bits}) : half_to_float(bits);
}

// Shape in the file: the model's, or its transpose.
std::vector<int64_t> external_shape(const nn::Parameter& p, bool transposed) {
  std::vector<int64_t> shape(p.shape.sizes().begin(), p.shape.sizes().end());
  if (transposed) std::swap(shape.at(0), shape.at(1));
  return shape;
}

void read_external(const SafetensorsEntry& entry, const nn::Parameter& p, bool transposed,
                   float* out) {
  DS_CHECK(entry.dtype == DType::kFloat32 || entry.dtype == DType::kBFloat16 ||
               entry.dtype == DType::kFloat16,
           Code::kUnsupported, "tensor ", printable(entry.name), " has type ",
           printable(entry.dtype_name), "; weights are read from F32, BF16 and F16");
  const std::vector<int64_t> expected = external_shape(p, transposed);
  DS_CHECK(entry.shape == expected, Code::kCorrupt, "tensor ", printable(entry.name), " has shape ",
           Shape(entry.shape).text(), ", the configuration asks for ", Shape(expected).text());
  const int64_t n = p.shape.elements();
  if (!transposed) {
    for (int64_t i = 0; i < n; ++i) out[i] = element(entry, i);
    return;
  }
  const int64_t rows = p.shape[0], columns = p.shape[1];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[r * columns + c] = element(entry, c * rows + r);
  }
}

std::shared_ptr<Model> open_hugging_face(const fs::path& folder) {
  const fs::path config_path = folder / "config.json";
  const Json config = parse_json(read_text_file(config_path, kConfigLimit),
                                 printable(config_path.string(), 300), Code::kConfig);
  auto model = std::make_shared<Model>(config);
  const Architecture& architecture = model->architecture();
  const SafetensorsModel file(folder);
  std::unordered_set<std::string> used;
  const std::string prefix = architecture.external_prefix();
  // Files may write the prefix or leave it off.
  const auto find = [&](const std::string& name) {
    const SafetensorsEntry* entry = file.find(name);
    if (entry == nullptr && name.starts_with(prefix)) {
      entry = file.find(name.substr(prefix.size()));
    } else if (entry == nullptr) {
      entry = file.find(prefix + name);
    }
    return entry;
  };
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const nn::Parameter& p = model->parameters()[id];
    const ExternalName external = architecture.external_name(id);
    const SafetensorsEntry* entry = find(external.name);
    if (entry == nullptr) entry = &file.require(external.name);
    read_external(*entry, p, external.transposed, model->state().master(id).data<float>());
    used.insert(entry->name);
    // A tied tensor may be stored again under its other name; it says the same.
    for (const std::string& alias : p.aliases) {
      if (const SafetensorsEntry* copy = find(alias)) used.insert(copy->name);
    }
  }
  for (const SafetensorsEntry* entry : file.entries()) {
    DS_CHECK(used.contains(entry->name) || architecture.ignorable_external(entry->name),
             Code::kUnsupported, printable(folder.string(), 300), " holds tensor ",
             printable(entry->name), ", which the model does not have");
  }
  model->state().masters_changed(model->context());
  return model;
}

CheckpointReader open_checkpoint(const fs::path& folder) {
  if (fs::exists(folder / kManifestFile)) return CheckpointReader::open_folder(folder);
  return std::move(open_latest_valid(folder).reader);
}

std::shared_ptr<Model> open_saved(const fs::path& folder) {
  const CheckpointReader reader = open_checkpoint(folder);
  auto model = std::make_shared<Model>(reader.state_json(kModelConfigState));
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const nn::Parameter& p = model->parameters()[id];
    const TensorRecord& tensor = reader.tensor(p.name, TensorKind::kMaster);
    const Shape saved(tensor.meta.shape);
    DS_CHECK(saved == p.shape && tensor.meta.dtype == DType::kFloat32, Code::kCorrupt,
             "the checkpoint holds ", p.name, " as ", dtype_name(tensor.meta.dtype), " ",
             saved.text(), ", its model configuration asks for float32 ", p.shape.text());
    const Tensor master = model->state().master(id);
    reader.read(tensor,
                {static_cast<std::byte*>(master.raw()), static_cast<size_t>(master.bytes())});
  }
  return model;
}

void check_folder(const fs::path& folder) {
  std::error_code error;
  DS_CHECK(fs::is_directory(folder, error), Code::kNotFound, "there is no folder ",
           printable(folder.string(), 300));
}

}  // namespace

std::shared_ptr<Model> open_model(const fs::path& folder) {
  check_folder(folder);
  return fs::exists(folder / "config.json") ? open_hugging_face(folder) : open_saved(folder);
}

TokenizerPtr open_tokenizer(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error) || fs::exists(path / "tokenizer.json")) {
    return load_tokenizer(path);
  }
  if (fs::exists(path / "vocab.json") && fs::exists(path / "merges.txt")) {
    return load_gpt2_tokenizer(path / "vocab.json", path / "merges.txt");
  }
  DS_CHECK(!fs::exists(path / "config.json"), Code::kNotFound, printable(path.string(), 300),
           " holds no tokenizer.json");
  const CheckpointReader reader = open_checkpoint(path);
  DS_CHECK(reader.has_state(kTokenizerState), Code::kNotFound, "the checkpoint ",
           printable(reader.folder().string(), 300), " holds no tokenizer");
  return parse_tokenizer_json(reader.state_text(kTokenizerState),
                              printable(reader.folder().string(), 300));
}

void export_model(Model& model, const fs::path& folder, DType dtype) {
  DS_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16, Code::kInvalidArgument,
           "weights are exported as float32 or bfloat16, not ", dtype_name(dtype));
  make_folders(folder);
  const Architecture& architecture = model.architecture();
  std::vector<std::vector<std::byte>> buffers;
  std::vector<SafetensorsTensor> tensors;
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    const nn::Parameter& p = model.parameters()[id];
    const ExternalName external = architecture.external_name(id);
    const float* const from = model.state().master(id).data<float>();
    const int64_t n = p.shape.elements();
    const int64_t rows = p.shape[0], columns = external.transposed ? p.shape[1] : 1;
    std::vector<std::byte>& buffer =
        buffers.emplace_back(static_cast<size_t>(n * dtype_size(dtype)));
    for (int64_t i = 0; i < n; ++i) {
      const float value = external.transposed ? from[(i % rows) * columns + i / rows] : from[i];
      if (dtype == DType::kFloat32) {
        std::memcpy(buffer.data() + i * 4, &value, 4);
      } else {
        const uint16_t bits = to_bfloat16(value).bits;
        std::memcpy(buffer.data() + i * 2, &bits, 2);
      }
    }
    tensors.push_back({external.name, dtype, external_shape(p, external.transposed), buffer});
  }
  Json config = architecture.config();
  config["torch_dtype"] = std::string(dtype_name(dtype));
  write_safetensors(folder / "model.safetensors", std::move(tensors));
  write_file_durably(folder / "config.json", dump_json(config, 2) + "\n");
}

}  // namespace ds::models
