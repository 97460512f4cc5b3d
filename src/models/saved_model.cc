#include "models/saved_model.h"

#include "base/checksum.h"
#include "models/adapters.h"
#include "models/weight_loaders.h"
#include "tensor/transfer.h"

namespace ds::models {
namespace {

namespace fs = std::filesystem;

Json describe_own(const nn::ParameterSet& parameters) {
  Json out = Json::object();
  for (nn::ParamId id = 0; id < parameters.size(); ++id) {
    const nn::Parameter& p = parameters[id];
    out[p.name] = {{"group", p.group}, {"decays", p.decays}, {"dtype", dtype_name(p.dtype)}};
  }
  return out;
}

void read_own(const Json& described, nn::Parameter& p) {
  const auto found = described.is_object() ? described.find(p.name) : described.end();
  const bool good = found != described.end() && found->is_object() && found->contains("group") &&
                    found->at("group").is_string() && found->contains("decays") &&
                    found->at("decays").is_boolean() && found->contains("dtype") &&
                    found->at("dtype").is_string();
  DS_CHECK(good, Code::kCorrupt, "the checkpoint does not describe its parameter ",
           printable(p.name));
  p.group = found->at("group").get<std::string>();
  p.decays = found->at("decays").get<bool>();
  const std::string dtype = found->at("dtype").get<std::string>();
  const auto type = dtype_named(dtype);
  DS_CHECK(type, Code::kCorrupt, "the checkpoint describes its parameter ", printable(p.name),
           " with an unknown type ", printable(dtype));
  p.dtype = *type;
}

// Registered as they were; the order is that of the file.
nn::ParameterSet own_parameters(const CheckpointReader& reader) {
  nn::ParameterSet set;
  const Json described = reader.state_json(kOwnParametersState);
  for (const TensorRecord& tensor : reader.manifest().tensors) {
    if (tensor.meta.kind != TensorKind::kMaster) continue;
    nn::Parameter p;
    p.name = tensor.meta.name;
    p.shape = Shape(tensor.meta.shape);
    p.aliases = tensor.meta.aliases;
    p.trainable = (tensor.meta.flags & kTrainable) != 0;
    p.expert = tensor.meta.expert;
    read_own(described, p);
    set.add(std::move(p));
  }
  DS_CHECK(set.size() > 0, Code::kNotFound, "the checkpoint ",
           printable(reader.folder().string(), 300), " holds no parameters");
  return set;
}

// Masters of a checkpoint; what is read is checked against its checksums.
class SavedWeights : public nn::WeightLoader {
 public:
  explicit SavedWeights(std::shared_ptr<const CheckpointReader> reader)
      : reader_(std::move(reader)) {}

  void fill(const OpContext&, nn::ParamId, const nn::Parameter& p, int64_t begin,
            Tensor& out) const override {
    reader_->read_range(reader_->tensor(p.name, TensorKind::kMaster), begin, begin + out.elements(),
                        {static_cast<std::byte*>(out.raw()), static_cast<size_t>(out.bytes())});
  }
  void fill_slice(const OpContext&, nn::ParamId, const nn::Parameter& p, int64_t begin,
                  Tensor& out) const override {
    reader_->read_slice(reader_->tensor(p.name, TensorKind::kMaster), begin, begin + out.elements(),
                        {static_cast<std::byte*>(out.raw()), static_cast<size_t>(out.bytes())});
  }
  // Of the checksums of everything that the checkpoint holds.
  uint64_t fingerprint() const override {
    uint64_t sum = 4;
    for (const BlobRecord& blob : reader_->manifest().blobs) {
      sum = mixed(mixed(sum, blob.size), xxh3_64(std::as_bytes(std::span(blob.checksums))));
    }
    return sum;
  }

 private:
  std::shared_ptr<const CheckpointReader> reader_;
};

std::shared_ptr<Model> make_saved(const CheckpointReader& reader) {
  if (!reader.has_state(kModelConfigState)) return Model::from_parameters(own_parameters(reader));
  auto model = std::make_shared<Model>(reader.state_json(kModelConfigState));
  if (reader.has_state(kLoraState)) add_lora(*model, parse_lora(reader.state_json(kLoraState)));
  return model;
}

}  // namespace

CheckpointReader open_checkpoint(const fs::path& folder) {
  if (fs::exists(folder / kManifestFile)) return CheckpointReader::open_folder(folder);
  return std::move(open_latest_valid(folder).reader);
}

std::shared_ptr<Model> open_saved_model(const fs::path& folder) {
  const auto opened = std::make_shared<CheckpointReader>(open_checkpoint(folder));
  const CheckpointReader& reader = *opened;
  auto model = make_saved(reader);
  std::vector<std::string> frozen, trained;
  for (nn::ParamId id = 0; id < model->parameters().size(); ++id) {
    const nn::Parameter& p = model->parameters()[id];
    const TensorRecord* const record = reader.find(p.name, TensorKind::kMaster);
    DS_CHECK(record != nullptr, Code::kNotFound, "the checkpoint ",
             printable(reader.folder().string(), 300), " does not hold ", p.name,
             ": it was saved without frozen parameters. Open the model that training began with, "
             "and load the checkpoint into its engine");
    const TensorRecord& tensor = *record;
    const Shape saved(tensor.meta.shape);
    DS_CHECK(saved == p.shape && tensor.meta.dtype == DType::kFloat32, Code::kCorrupt,
             "the checkpoint holds ", p.name, " as ", dtype_name(tensor.meta.dtype), " ",
             saved.text(), ", its model configuration asks for float32 ", p.shape.text());
    const bool trains = (tensor.meta.flags & kTrainable) != 0;
    if (trains != p.trainable) (trains ? trained : frozen).push_back(p.name);
  }
  model->set_weight_loader(std::make_shared<SavedWeights>(opened));
  if (!frozen.empty()) set_trainable(*model, frozen, false);
  if (!trained.empty()) set_trainable(*model, trained, true);
  return model;
}

TensorMeta parameter_meta(const nn::Parameter& parameter, TensorKind kind,
                          const std::string& state) {
  TensorMeta meta;
  meta.name = parameter.name;
  meta.kind = kind;
  meta.state = state;
  meta.dtype = DType::kFloat32;
  meta.shape.assign(parameter.shape.sizes().begin(), parameter.shape.sizes().end());
  meta.aliases = parameter.aliases;
  meta.flags = parameter.trainable ? kTrainable : kFrozen;
  meta.expert = static_cast<int32_t>(parameter.expert);
  return meta;
}

void describe_model(const Model& model, PartWriter& part) {
  if (model.has_architecture()) {
    part.set_json(kModelConfigState, model.architecture().config());
  } else {
    part.set_json(kOwnParametersState, describe_own(model.parameters()));
  }
  if (model.lora()) part.set_json(kLoraState, lora_json(model.lora()->options));
}

void save_model(Model& model, const fs::path& folder, const std::string& tag,
                const std::string& writer_name) {
  nn::ModelWeights& weights = model.weights();  // a prepared copy has none
  weights.check_not_lost();
  // What is replaced may be where the weights would come from later on.
  const fs::path replaced = folder / tag;
  std::error_code error;
  if (fs::exists(replaced, error)) weights.make(model.context());
  if (!model.writes_files()) {
    for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
      weights.read_in_parts(model.context(), id, 1, [](const Tensor&, int64_t) {});
    }
    return;
  }
  CheckpointWriterOptions options;
  options.folder = folder;
  options.tag = tag;
  options.writer = writer_name;
  CheckpointWriter writer(options);
  const OpContext ctx = model.context();
  for (nn::ParamId id = 0; id < model.parameters().size(); ++id) {
    const TensorMeta meta = parameter_meta(model.parameters()[id], TensorKind::kMaster);
    writer.part().begin_tensor(meta, full_box(meta.shape));
    weights.read_in_parts(ctx, id, 1, [&](const Tensor& part, int64_t) {
      const Tensor here = to_host(part, model.host());
      writer.part().append(
          {static_cast<const std::byte*>(here.raw()), static_cast<size_t>(here.bytes())});
    });
    writer.part().end_tensor();
  }
  describe_model(model, writer.part());
  writer.commit();
}

}  // namespace ds::models
