// One of everything that ds.h has handles for, small enough to make anew for each test, and a
// scratch folder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "capi/handle_table.h"
#include "ds.h"

namespace capi_test {

using ds::capi::HandleKind;

inline constexpr HandleKind kAllKinds[] = {
    HandleKind::kTensor,    HandleKind::kComm,   HandleKind::kTokenizer, HandleKind::kDataset,
    HandleKind::kModel,     HandleKind::kEngine, HandleKind::kOptimizer, HandleKind::kWork,
    HandleKind::kGenerator, HandleKind::kScope,  HandleKind::kIo};

// Ends a handle of any kind.
void destroy_handle(HandleKind kind, void* handle);

// Fails the test with the library's text.
#define ASSERT_DS_OK(call) ASSERT_EQ((call), DS_OK) << ds_last_error_message()
#define EXPECT_DS_OK(call) EXPECT_EQ((call), DS_OK) << ds_last_error_message()

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline constexpr int64_t kVocab = 256;
inline constexpr int64_t kPositions = 16;
inline constexpr int64_t kBatch = 2;
std::string model_config();
std::string engine_config();
// Some 20 KB of varied English-like text, the same for a seed.
std::string sample_text(uint32_t seed);
// A text of the library, which is freed; "" for null.
std::string take(char* text);
// Normal, of mean 0 and deviation 3.
std::vector<float> random_floats(size_t n, uint32_t seed);
ds_tensor* make_ids(int64_t batch, int64_t length, uint32_t seed);
ds_tensor* make_list(const std::vector<int32_t>& ids);

class World {
 public:
  World();
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void* handle(HandleKind kind) const;
  // A handle of this kind that was destroyed.
  void* destroyed(HandleKind kind);

  // Runs a forward and gives its loss.
  ds_tensor* forward();

  TemporaryFolder folder;
  ds_tensor* tensor = nullptr;  // float32 [2, 3], numbered
  ds_tensor* ids = nullptr;     // int32 [kBatch, 8]
  ds_tensor* list = nullptr;    // int32 [5]
  ds_tensor* counts = nullptr;  // int32 [2]: 2 and 3 of them
  ds_comm* comm = nullptr;
  ds_work* work = nullptr;  // a barrier that is over
  ds_tokenizer* tokenizer = nullptr;
  ds_dataset* dataset = nullptr;
  ds_model* model = nullptr;
  ds_engine* engine = nullptr;
  ds_optimizer* optimizer = nullptr;
  ds_generator* generator = nullptr;  // of the model's own weights
  ds_scope* scope = nullptr;          // a closed one
  ds_io* io = nullptr;
};

// Small questions that tests ask often; they fail the test without an answer.
ds_tensor_info info_of(const ds_tensor* tensor);
ds_engine_info info_of(const ds_engine* engine);
ds_model_info info_of(const ds_model* model);
ds_comm_info info_of(const ds_comm* comm);
ds_optimizer_info info_of(ds_optimizer* optimizer);
int64_t index_of(const ds_model* model, const std::string& name);
// A batch of ids that are their own labels.
ds_batch batch_of(const ds_tensor* ids, const ds_tensor* labels = nullptr,
                  const ds_tensor* mask = nullptr);

}  // namespace capi_test
