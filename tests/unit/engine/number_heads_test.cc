// Heads of numbers (regression, several labels at once) against Transformers in fp32:
// tests/data/families/bert_heads, made by tests/parity/gen_head_vectors.py.
#include <gmock/gmock.h>

#include "base/file.h"
#include "engine_world.h"
#include "models/weights.h"
#include "test_paths.h"

namespace ds {
namespace {

using namespace engine_test;
using ::testing::HasSubstr;

Tensor numbers(const std::vector<float>& values, const Shape& shape) {
  Tensor out = Tensor::empty(make_cpu_device(), DType::kFloat32, shape, MemoryTag::kOther);
  std::copy(values.begin(), values.end(), out.data<float>());
  return out;
}

// A list, or a list of lists.
template <class T>
std::vector<T> flattened(const Json& json) {
  std::vector<T> out;
  for (const Json& item : json) {
    if (!item.is_array()) {
      out.push_back(item.get<T>());
      continue;
    }
    for (const Json& number : item) out.push_back(number.get<T>());
  }
  return out;
}

struct Case {
  Json document;
  std::shared_ptr<models::Model> model;
  Tensor ids, labels;
  int64_t classes = 0;

  explicit Case(const std::string& name) {
    const fs::path families = test_data() / "families";
    document = parse_json(read_text_file(families / "bert_heads" / (name + ".json")), name,
                          Code::kCorrupt);
    const Folder folder;
    write_file_durably(folder.path("config.json"), dump_json(document["config"]));
    fs::create_symlink(families / "bert_classifier/model.safetensors",
                       folder.path("model.safetensors"));
    // The head is replaced below: here the folder's own, of three classes, or none fits.
    models::OpenOptions options;
    classes = static_cast<int64_t>(document["config"]["id2label"].size());
    if (classes != 3) {
      // The body alone, taken over by name.
      const auto three = models::open_model(folder_of_three(folder, families));
      model = models::Model::create(document["config"], 1);
      for (nn::ParamId id = 0; id < three->parameters().size(); ++id) {
        const std::string& parameter = three->parameters()[id].name;
        if (!parameter.starts_with("classifier.")) model->set(parameter, three->get(parameter));
      }
    } else {
      model = models::open_model(folder.path());
    }
    model->set("classifier.weight",
               numbers(flattened<float>(document["classifier"]["weight"]), {classes, 32}));
    model->set("classifier.bias",
               numbers(flattened<float>(document["classifier"]["bias"]), {classes}));
    ids = ids_tensor(flattened<int64_t>(document["ids"]), 4);
    labels =
        numbers(flattened<float>(document["labels"]), classes == 1 ? Shape{4} : Shape{4, classes});
  }

  static fs::path folder_of_three(const Folder& folder, const fs::path& families) {
    fs::copy_file(families / "bert_classifier/config.default.json", folder.path("config.json"),
                  fs::copy_options::overwrite_existing);
    return folder.path();
  }
};

Json plain_config() {
  return with(base_config(), {{"gradient_accumulation_steps", 1}, {"scheduler", nullptr}});
}

class NumberHeads : public ::testing::TestWithParam<const char*> {};

TEST_P(NumberHeads, LossAndGradientsAreThoseOfTransformers) {
  Case c(GetParam());
  Engine engine(dump_json(plain_config()), c.model, nullptr);
  const Tensor loss = engine.forward({c.ids, c.labels, {}, {}, {}});
  EXPECT_NEAR(*loss.data<float>(), c.document["loss"].get<double>(), 1e-5);
  engine.backward(loss);
  const auto near = [&](const std::vector<float>& actual, const char* name) {
    const auto expected = flattened<float>(c.document["gradients"][name]);
    ASSERT_EQ(actual.size(), expected.size()) << name;
    double largest = 1e-3;
    for (const float x : expected) largest = std::max(largest, std::abs(double{x}));
    EXPECT_LT(largest_difference(actual, expected), 2e-5 * largest) << name;
  };
  near(flat(engine.gradients().get("classifier.weight")), "classifier.weight");
  near(flat(engine.gradients().get("classifier.bias")), "classifier.bias");
  near(flat(engine.gradients().get("pooler.dense.bias")), "bert.pooler.dense.bias");
  near(flat(engine.gradients().get("encoder.layer.0.attention.self.value.bias")),
       "bert.encoder.layer.0.attention.self.value.bias");
  const std::vector<float> words =
      flat(engine.gradients().get("embeddings.word_embeddings.weight"));
  const auto row = [&](int64_t id) {
    return std::vector<float>(words.begin() + id * 32, words.begin() + (id + 1) * 32);
  };
  near(row(c.ids.data<int64_t>()[0]), "a row");
  EXPECT_EQ(row(0), std::vector<float>(32, 0.0f));  // padding
  near(row(0), "padding row");
  double before = *loss.data<float>();
  for (int i = 0; i < 10; ++i) {
    engine.step();
    const Tensor next = engine.forward({c.ids, c.labels, {}, {}, {}});
    engine.backward(next);
    before = *next.data<float>();
  }
  EXPECT_LT(before, c.document["loss"].get<double>());
}
INSTANTIATE_TEST_SUITE_P(All, NumberHeads,
                         ::testing::Values("regression", "regression_wide", "multi_label"));

TEST(NumberHeads, LabelsThatDoNotFitAreRefused) {
  Case c("multi_label");
  Engine engine(dump_json(plain_config()), c.model, nullptr);
  const auto refused = [&](const Tensor& labels) {
    return error_of(Code::kInvalidArgument, [&] { engine.forward({c.ids, labels, {}, {}, {}}); });
  };
  EXPECT_THAT(refused(numbers(std::vector<float>(12, 1.5f), {4, 3})), HasSubstr("from 0 to 1"));
  EXPECT_THAT(refused(numbers(std::vector<float>(4, 1), {4})), HasSubstr("[4, 3]"));
  EXPECT_THAT(refused(numbers(std::vector<float>(12, NAN), {4, 3})), HasSubstr("labels[0, 0]"));
  // Whole numbers are numbers, too.
  engine.forward({c.ids, ids_tensor(std::vector<int64_t>(12, 1), 4), {}, {}, {}});
}

TEST(NumberHeads, UnknownProblemsAreRefusedByName) {
  Json config = Case("multi_label").document["config"];
  config["problem_type"] = "ranking";
  EXPECT_THAT(error_of(Code::kUnsupported, [&] { models::Model::create(config, 1); }),
              HasSubstr("ranking"));
  config["problem_type"] = "single_label_classification";
  config["id2label"] = {{"0", "one"}};
  EXPECT_THAT(error_of(Code::kConfig, [&] { models::Model::create(config, 1); }),
              HasSubstr("regression"));
}

}  // namespace
}  // namespace ds
