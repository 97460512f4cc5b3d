#include "models/layer_reduction.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "base/text.h"
#include "models/weight_loaders.h"

namespace ds::models {
namespace {

// "encoder.layer", 3 and "attention.self.query.weight" of a parameter in a layer.
struct LayerName {
  std::string prefix;
  int64_t layer = -1;  // -1: in none
  std::string rest;
};

std::string without_prefix(const Architecture& architecture, std::string name) {
  const std::string prefix = architecture.external_prefix();
  if (!prefix.empty() && name.rfind(prefix, 0) == 0) name.erase(0, prefix.size());
  return name;
}

// Files add a prefix to names or leave it off, and so may whoever writes them down.
std::string name_in_files(const Architecture& architecture, nn::ParamId id) {
  return without_prefix(architecture, architecture.external_name(id).name);
}

// Of all families the first number in a name is the layer's.
LayerName split_name(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    int64_t layer = 0;
    const auto [read, error] = std::from_chars(name.data() + begin, name.data() + end, layer);
    if (error == std::errc() && read == name.data() + end && begin > 0 && end < name.size()) {
      return {name.substr(0, begin - 1), layer, name.substr(end + 1)};
    }
    begin = end + 1;
  }
  return {{}, -1, name};
}

bool in_module(const std::string& name, const std::string& module) {
  return name == module || name.rfind(module + '.', 0) == 0;
}

// From the teacher's loader where a source is given, else the student's own.
class ReducedWeights final : public nn::WeightLoader {
 public:
  ReducedWeights(std::shared_ptr<Model> teacher, std::vector<nn::ParamId> sources,
                 std::shared_ptr<const nn::WeightLoader> own)
      : teacher_(std::move(teacher)),
        from_(teacher_->held_weights("a student cannot begin with its layers").loader()),
        sources_(std::move(sources)),
        own_(std::move(own)) {
    DS_CHECK(from_ && own_, Code::kInternal, "weights of a student have no source");
  }

  void fill(const OpContext& ctx, nn::ParamId id, const nn::Parameter& p, int64_t begin,
            Tensor& out) const override {
    const nn::ParamId source = source_of(id);
    if (source == nn::kNoParam) return own_->fill(ctx, id, p, begin, out);
    from_->fill(ctx, source, teacher_->parameters()[source], begin, out);
  }
  void fill_slice(const OpContext& ctx, nn::ParamId id, const nn::Parameter& p, int64_t begin,
                  Tensor& out) const override {
    const nn::ParamId source = source_of(id);
    if (source == nn::kNoParam) return own_->fill_slice(ctx, id, p, begin, out);
    from_->fill_slice(ctx, source, teacher_->parameters()[source], begin, out);
  }
  uint64_t fingerprint() const override {
    uint64_t sum = mixed(mixed(5, from_->fingerprint()), own_->fingerprint());
    for (const nn::ParamId source : sources_) sum = mixed(sum, static_cast<uint64_t>(source));
    return sum;
  }

 private:
  // Adapters come after the parameters of the architecture.
  nn::ParamId source_of(nn::ParamId id) const {
    return static_cast<size_t>(id) < sources_.size() ? sources_[static_cast<size_t>(id)]
                                                     : nn::kNoParam;
  }

  const std::shared_ptr<Model> teacher_;
  const std::shared_ptr<const nn::WeightLoader> from_;
  const std::vector<nn::ParamId> sources_;
  const std::shared_ptr<const nn::WeightLoader> own_;
};

// The parameters of a teacher by their names in files.
class TeacherNames {
 public:
  explicit TeacherNames(const Architecture& teacher) : parameters_(teacher.parameters()) {
    for (nn::ParamId id = 0; id < parameters_.size(); ++id) {
      by_name_[name_in_files(teacher, id)] = id;
    }
  }

  // kNoParam when there is none. Throws where the shape is another.
  nn::ParamId find(const std::string& name, const nn::Parameter& of) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nn::kNoParam;
    const nn::Parameter& from = parameters_[found->second];
    DS_CHECK(from.shape == of.shape, Code::kConfig, printable(of.name),
             " of the student has shape ", of.shape.text(), ", and ", printable(from.name),
             " of the teacher ", from.shape.text(),
             "; a student that begins with its teacher's layers has its sizes");
    return found->second;
  }

 private:
  const nn::ParameterSet& parameters_;
  std::map<std::string, nn::ParamId> by_name_;
};

// Which parameter of the teacher each of the student's begins as.
class Sources {
 public:
  Sources(const Architecture& student, const Architecture& teacher, const LayerReduction& reduction)
      : student_(student), names_(teacher), reduction_(reduction) {
    if (reduction.others) {
      for (const std::string& module : *reduction.others) {
        modules_.push_back(without_prefix(student, module));
      }
    }
    used_.resize(modules_.size());
  }

  std::vector<nn::ParamId> find() {
    std::vector<nn::ParamId> out;
    for (nn::ParamId id = 0; id < student_.parameters().size(); ++id) out.push_back(source(id));
    for (size_t i = 0; i < modules_.size(); ++i) {
      DS_CHECK(used_[i], Code::kConfig, "other_module_name: the student has no module ",
               printable((*reduction_.others)[i]));
    }
    return out;
  }

 private:
  nn::ParamId source(nn::ParamId id) {
    const nn::Parameter& p = student_.parameters()[id];
    const std::string name = name_in_files(student_, id);
    const LayerName layer = split_name(name);
    if (layer.layer < 0) return other(name, p);
    const std::string prefix = without_prefix(student_, reduction_.prefix);
    DS_CHECK(prefix.empty() || prefix == layer.prefix, Code::kConfig,
             "module_name_prefix: ", printable(reduction_.prefix),
             " is before no layer's number; of this model that is ",
             printable(student_.external_prefix() + layer.prefix));
    const int64_t from = reduction_.teacher_layers[static_cast<size_t>(layer.layer)];
    const nn::ParamId found = names_.find(str_cat(layer.prefix, '.', from, '.', layer.rest), p);
    DS_CHECK(found != nn::kNoParam, Code::kConfig, "teacher_layer: layer ", from,
             " of the teacher has no parameter for ", printable(p.name), " of the student");
    return found;
  }

  nn::ParamId other(const std::string& name, const nn::Parameter& p) {
    if (!reduction_.others) return names_.find(name, p);
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (!in_module(name, modules_[i])) continue;
      used_[i] = true;
      const nn::ParamId found = names_.find(name, p);
      DS_CHECK(found != nn::kNoParam, Code::kConfig, "other_module_name: the teacher has no ",
               printable(name));
      return found;
    }
    return nn::kNoParam;
  }

  const Architecture& student_;
  const TeacherNames names_;
  const LayerReduction& reduction_;
  std::vector<std::string> modules_;
  std::vector<bool> used_;
};

}  // namespace

std::shared_ptr<const nn::WeightLoader> reduced_weights(Model& student,
                                                        std::shared_ptr<Model> teacher,
                                                        const LayerReduction& reduction) {
  const int64_t layers = student.architecture().info().layers;
  const int64_t there = teacher->architecture().info().layers;
  DS_CHECK(std::ssize(reduction.teacher_layers) == layers, Code::kConfig,
           "teacher_layer: ", reduction.teacher_layers.size(),
           " layers are named, and the student has ", layers);
  for (const int64_t layer : reduction.teacher_layers) {
    DS_CHECK(layer < there, Code::kConfig, "teacher_layer: there is no layer ", layer,
             "; the teacher has layers 0 to ", there - 1);
  }
  std::vector<nn::ParamId> sources =
      Sources(student.architecture(), teacher->architecture(), reduction).find();
  std::shared_ptr<const nn::WeightLoader> own =
      student.held_weights("a student cannot begin with its teacher's layers").loader();
  return std::make_shared<ReducedWeights>(std::move(teacher), std::move(sources), std::move(own));
}

}  // namespace ds::models
