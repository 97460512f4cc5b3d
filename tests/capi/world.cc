#include "capi/world.h"

#include <fstream>
#include <random>

#include "base/text.h"

namespace capi_test {

void destroy_handle(HandleKind kind, void* handle) {
  switch (kind) {
    case HandleKind::kTensor:
      return ds_tensor_destroy(static_cast<ds_tensor*>(handle));
    case HandleKind::kComm:
      return ds_comm_destroy(static_cast<ds_comm*>(handle));
    case HandleKind::kTokenizer:
      return ds_tokenizer_destroy(static_cast<ds_tokenizer*>(handle));
    case HandleKind::kDataset:
      return ds_dataset_destroy(static_cast<ds_dataset*>(handle));
    case HandleKind::kModel:
      return ds_model_destroy(static_cast<ds_model*>(handle));
    case HandleKind::kEngine:
      return ds_engine_destroy(static_cast<ds_engine*>(handle));
    case HandleKind::kOptimizer:
      return ds_optimizer_destroy(static_cast<ds_optimizer*>(handle));
    case HandleKind::kGenerator:
      return ds_generator_destroy(static_cast<ds_generator*>(handle));
    case HandleKind::kScope:
      return ds_scope_destroy(static_cast<ds_scope*>(handle));
    case HandleKind::kWork:
      return ds_work_destroy(static_cast<ds_work*>(handle));
    case HandleKind::kIo:
      return ds_io_destroy(static_cast<ds_io*>(handle));
  }
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "ds-capi-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string model_config() {
  return ds::str_cat(R"({"model_type": "gpt2", "vocab_size": )", kVocab, R"(, "n_positions": )",
                     kPositions, R"(, "n_embd": 16, "n_layer": 1, "n_head": 2})");
}

std::string engine_config() {
  return ds::str_cat(R"({"train_micro_batch_size_per_gpu": )", kBatch,
                     R"(, "gradient_accumulation_steps": 1,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})");
}

std::string sample_text(uint32_t seed) {
  static constexpr const char* kWords[] = {"the",   "old",  "house", "by",   "sea", "was",
                                           "cold",  "when", "night", "came", "and", "nobody",
                                           "spoke", "of",   "it",    "again"};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < 20000) {
    text += kWords[random() % std::size(kWords)];
    text += random() % 12 == 0 ? ".\n" : " ";
  }
  return text;
}

std::string take(char* text) {
  std::string out = text == nullptr ? "" : text;
  ds_string_free(text);
  return out;
}

std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

ds_tensor* make_ids(int64_t batch, int64_t length, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> values(static_cast<size_t>(batch * length));
  for (int32_t& v : values) v = static_cast<int32_t>(random() % kVocab);
  const int64_t shape[] = {batch, length};
  ds_tensor* out = nullptr;
  EXPECT_DS_OK(ds_tensor_create(DS_INT32, shape, 2, &out));
  EXPECT_DS_OK(ds_tensor_write(out, values.data(), static_cast<int64_t>(values.size() * 4)));
  return out;
}

ds_tensor* make_list(const std::vector<int32_t>& ids) {
  const int64_t shape[] = {static_cast<int64_t>(ids.size())};
  ds_tensor* out = nullptr;
  EXPECT_DS_OK(ds_tensor_create(DS_INT32, shape, 1, &out));
  EXPECT_DS_OK(ds_tensor_write(out, ids.data(), static_cast<int64_t>(ids.size() * 4)));
  return out;
}

// PREFIX.bin and PREFIX.idx of one document: the tokens 1 and 2, of 16 bits.
static void write_tokens(const std::string& prefix) {
  std::ofstream(prefix + ".bin", std::ios::binary) << std::string("\1\0\2\0", 4);
  std::string idx("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18);
  for (const char number : {'\1', '\2'}) idx += number + std::string(7, '\0');  // sequences, ends
  idx += std::string("\2\0\0\0", 4) + std::string(16, '\0');  // size, place, the first end
  idx += '\1' + std::string(7, '\0');
  std::ofstream(prefix + ".idx", std::ios::binary) << idx;
}

World::World() {
  std::ofstream(folder.file("text.txt")) << sample_text(7);
  write_tokens(folder.file("tokens"));
  const int64_t shape[] = {2, 3};
  const float values[] = {0, 1, 2, 3, 4, 5};
  EXPECT_DS_OK(ds_tensor_create(DS_FLOAT32, shape, 2, &tensor));
  EXPECT_DS_OK(ds_tensor_write(tensor, values, sizeof(values)));
  ids = make_ids(kBatch, 8, 11);
  list = make_list({72, 101, 108, 108, 111});
  counts = make_list({2, 3});
  EXPECT_DS_OK(ds_comm_create(0, 1, nullptr, nullptr, &comm));
  ds_collective barrier{};
  barrier.struct_size = sizeof(barrier);
  barrier.kind = DS_COLLECTIVE_BARRIER;
  EXPECT_DS_OK(ds_comm_start(comm, &barrier, &work));
  EXPECT_DS_OK(ds_tokenizer_create_bytes(&tokenizer));
  const std::string spec =
      ds::str_cat(R"({"path": ")", folder.file("text.txt"),
                  R"(", "sequence_length": 8, "split": "1", "part": "train"})");
  EXPECT_DS_OK(ds_dataset_open(spec.c_str(), tokenizer, &dataset));
  EXPECT_DS_OK(ds_model_create(model_config().c_str(), 1, &model));
  EXPECT_DS_OK(ds_engine_create(engine_config().c_str(), nullptr, model, comm, &engine));
  EXPECT_DS_OK(ds_engine_optimizer(engine, &optimizer));
  EXPECT_DS_OK(ds_generator_create(model, nullptr, &generator));
  EXPECT_DS_OK(ds_engine_open_scope(engine, nullptr, 1, DS_SCOPE_MODIFY, &scope));
  EXPECT_DS_OK(ds_scope_close(scope));
  EXPECT_DS_OK(ds_io_create(nullptr, &io));
  EXPECT_DS_OK(ds_engine_set_dataset(engine, dataset));
  EXPECT_DS_OK(ds_engine_set_tokenizer(engine, tokenizer));
}

World::~World() {
  ds_tensor_destroy(tensor);
  ds_tensor_destroy(ids);
  ds_tensor_destroy(list);
  ds_tensor_destroy(counts);
  ds_comm_destroy(comm);
  ds_work_destroy(work);
  ds_tokenizer_destroy(tokenizer);
  ds_dataset_destroy(dataset);
  ds_model_destroy(model);
  ds_engine_destroy(engine);
  ds_optimizer_destroy(optimizer);
  ds_generator_destroy(generator);
  ds_scope_destroy(scope);
  ds_io_destroy(io);
}

void* World::handle(HandleKind kind) const {
  switch (kind) {
    case HandleKind::kTensor:
      return tensor;
    case HandleKind::kComm:
      return comm;
    case HandleKind::kTokenizer:
      return tokenizer;
    case HandleKind::kDataset:
      return dataset;
    case HandleKind::kModel:
      return model;
    case HandleKind::kEngine:
      return engine;
    case HandleKind::kOptimizer:
      return optimizer;
    case HandleKind::kWork:
      return work;
    case HandleKind::kGenerator:
      return generator;
    case HandleKind::kScope:
      return scope;
    case HandleKind::kIo:
      return io;
  }
  return nullptr;
}

void* World::destroyed(HandleKind kind) {
  const World other;
  void* const handle = other.handle(kind);
  return handle;
}

ds_tensor* World::forward() {
  const ds_batch batch = batch_of(ids, ids);
  ds_tensor* loss = nullptr;
  EXPECT_DS_OK(ds_engine_forward(engine, &batch, &loss));
  return loss;
}

ds_tensor_info info_of(const ds_tensor* tensor) {
  ds_tensor_info info = DS_TENSOR_INFO_INIT;
  EXPECT_DS_OK(ds_tensor_describe(tensor, &info));
  return info;
}
ds_engine_info info_of(const ds_engine* engine) {
  ds_engine_info info = DS_ENGINE_INFO_INIT;
  EXPECT_DS_OK(ds_engine_describe(engine, &info));
  return info;
}
ds_model_info info_of(const ds_model* model) {
  ds_model_info info = DS_MODEL_INFO_INIT;
  EXPECT_DS_OK(ds_model_describe(model, &info));
  return info;
}
ds_comm_info info_of(const ds_comm* comm) {
  ds_comm_info info = DS_COMM_INFO_INIT;
  EXPECT_DS_OK(ds_comm_describe(comm, &info));
  return info;
}
ds_optimizer_info info_of(ds_optimizer* optimizer) {
  ds_optimizer_info info = DS_OPTIMIZER_INFO_INIT;
  EXPECT_DS_OK(ds_optimizer_describe(optimizer, &info));
  return info;
}

int64_t index_of(const ds_model* model, const std::string& name) {
  int64_t index = -1;
  EXPECT_DS_OK(ds_model_parameter_index(model, name.c_str(), &index));
  return index;
}

ds_batch batch_of(const ds_tensor* ids, const ds_tensor* labels, const ds_tensor* mask) {
  ds_batch batch = DS_BATCH_INIT;
  batch.ids = ids;
  batch.labels = labels;
  batch.attention_mask = mask;
  return batch;
}

}  // namespace capi_test
