// What the rows of the table of calls are made of.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "capi/calls.h"

namespace capi_test {

inline Param in(HandleKind kind, const char* name) { return {ParamKind::kHandle, name, kind}; }
inline Param maybe(HandleKind kind, const char* name) {
  return {ParamKind::kOptionalHandle, name, kind};
}
inline Param text(const char* name, std::string value) {
  return {ParamKind::kText, name, HandleKind::kTensor, OutKind::kPlain, std::move(value)};
}
inline Param pointer(const char* name) { return {ParamKind::kPointer, name}; }
inline Param out(const char* name) { return {ParamKind::kOut, name}; }
inline Param out_text(const char* name) {
  return {ParamKind::kOut, name, HandleKind::kTensor, OutKind::kText};
}
inline Param out(HandleKind kind, const char* name) {
  return {ParamKind::kOut, name, kind, OutKind::kHandle};
}

// Arguments under their types.
template <class T>
T* p(const Arguments& a, size_t i) {
  return static_cast<T*>(a[i]);
}
inline const char* s(const Arguments& a, size_t i) { return static_cast<const char*>(a[i]); }

inline constexpr auto kTensor = HandleKind::kTensor;
inline constexpr auto kComm = HandleKind::kComm;
inline constexpr auto kTokenizer = HandleKind::kTokenizer;
inline constexpr auto kDataset = HandleKind::kDataset;
inline constexpr auto kModel = HandleKind::kModel;
inline constexpr auto kEngine = HandleKind::kEngine;
inline constexpr auto kOptimizer = HandleKind::kOptimizer;
inline constexpr auto kWork = HandleKind::kWork;
inline constexpr auto kGenerator = HandleKind::kGenerator;
inline constexpr auto kScope = HandleKind::kScope;
inline constexpr auto kIo = HandleKind::kIo;

inline int64_t shape_2_3[] = {2, 3};
inline float six_floats[6] = {1, 2, 3, 4, 5, 6};
inline constexpr char kParameter[] = "ln_f.weight";  // a parameter of the test model

inline void save_checkpoint(World& world) {
  EXPECT_DS_OK(ds_engine_save(world.engine, world.folder.file("saved").c_str(), "one"));
}

// A tensor that fits as parameter 0, or as its gradient.
inline void take_parameter(World& world) {
  ds_tensor_destroy(world.tensor);
  EXPECT_DS_OK(ds_model_get_parameter(world.model, 0, &world.tensor));
}

// A list of one tensor.
inline ds_tensor** list_of(ds_tensor* tensor) {
  static ds_tensor* list;
  list = tensor;
  return &list;
}

inline ds_batch batch_of_arguments(const Arguments& a, size_t ids, size_t labels, size_t mask) {
  ds_batch batch = DS_BATCH_INIT;
  batch.ids = p<ds_tensor>(a, ids);
  if (labels != 0) batch.labels = p<ds_tensor>(a, labels);
  batch.attention_mask = p<ds_tensor>(a, mask);
  return batch;
}

std::vector<Call> library_calls();
std::vector<Call> tensor_calls();
std::vector<Call> comm_calls();
std::vector<Call> io_calls();
std::vector<Call> tokenizer_calls();
std::vector<Call> dataset_calls();
std::vector<Call> model_calls();
std::vector<Call> parameter_calls();
std::vector<Call> generator_calls();
std::vector<Call> gradient_calls();
std::vector<Call> engine_calls();
std::vector<Call> optimizer_and_checkpoint_calls();

}  // namespace capi_test
