// GPU memory that a framework would lend, and engines of a program's own parameters on it or on the
// host, through ds.h.
#pragma once

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <random>
#include <string>
#include <vector>

#include "device/cuda_device.h"
#include "ds.h"
#include "fresh_seed.h"
#include "tensor/dlpack_abi.h"

namespace ds::dlpack_test {

constexpr int64_t kRows = 3, kColumns = 5, kElements = kRows * kColumns;

// cudaMemcpy from pageable memory returns when the numbers were read, not when they are there, and
// the library's streams do not wait for CUDA's legacy default stream: it expects memory ready.
inline void copy_and_wait(const std::vector<float>& values, void* to) {
  EXPECT_EQ(cudaMemcpy(to, values.data(), values.size() * sizeof(float), cudaMemcpyDefault),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

// Memory of cuda:0 with a deleter that counts, as a framework would give it.
struct Loan {
  explicit Loan(const std::vector<float>& values, int gpu = 0) {
    EXPECT_EQ(cudaSetDevice(gpu), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&data, values.size() * sizeof(float)), cudaSuccess);
    put(values);
    managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* self) {
      ++static_cast<Loan*>(self->manager_ctx)->deleted;
    };
    managed.dl_tensor.data = data;
    managed.dl_tensor.device = {kDLCUDA, gpu};
    managed.dl_tensor.ndim = 2;
    managed.dl_tensor.dtype = {kDLFloat, 32, 1};
    managed.dl_tensor.shape = shape;
    managed.dl_tensor.strides = nullptr;
  }
  ~Loan() { EXPECT_EQ(cudaFree(data), cudaSuccess); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  void put(const std::vector<float>& values) { copy_and_wait(values, data); }
  std::vector<float> get() const {
    std::vector<float> values(kElements);
    EXPECT_EQ(cudaMemcpy(values.data(), data, kElements * sizeof(float), cudaMemcpyDefault),
              cudaSuccess);
    return values;
  }
  ds_tensor* tensor() {
    ds_tensor* out = nullptr;
    EXPECT_EQ(ds_tensor_from_dlpack(&managed, nullptr, &out), DS_OK) << ds_last_error_message();
    return out;
  }

  void* data = nullptr;
  int64_t shape[2] = {kRows, kColumns};
  int64_t strides[2] = {1, kRows};
  DLManagedTensorVersioned managed{};
  int deleted = 0;
};

class GpuDlpack : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
  }
  std::vector<float> numbers(size_t count = kElements) {
    std::normal_distribution<float> normal;
    std::vector<float> out(count);
    for (float& value : out) value = normal(random_);
    return out;
  }
  static std::vector<float> read(const ds_tensor* tensor) {
    std::vector<float> out(kElements);
    EXPECT_EQ(ds_tensor_read(tensor, out.data(), kElements * 4), DS_OK) << ds_last_error_message();
    return out;
  }
  static std::string refused(ds_status status, ds_status expected) {
    EXPECT_EQ(status, expected);
    return ds_last_error_message();
  }
  std::mt19937_64 random_{ds::fresh_seed()};
};

inline int64_t index_of(const ds_model* model, const char* name) {
  int64_t index = -1;
  EXPECT_EQ(ds_model_parameter_index(model, name, &index), DS_OK) << ds_last_error_message();
  return index;
}

// An engine of two parameters, the first of them lent; on a GPU or the host.
struct OwnModel {
  OwnModel(ds_tensor* lent, ds_tensor* copied, const char* config) {
    ds_parameter parameters[2] = {};
    const char* const names[] = {"lent", "copied"};
    ds_tensor* const values[] = {lent, copied};
    for (int i = 0; i < 2; ++i) {
      parameters[i].struct_size = sizeof(ds_parameter);
      parameters[i].name = names[i];
      parameters[i].value = values[i];
    }
    parameters[0].lend = 1;
    EXPECT_EQ(ds_model_create_from_parameters(parameters, 2, &model), DS_OK)
        << ds_last_error_message();
    EXPECT_EQ(ds_engine_create(config, nullptr, model, nullptr, &engine), DS_OK)
        << ds_last_error_message();
  }
  ~OwnModel() {
    ds_engine_destroy(engine);
    ds_model_destroy(model);
  }
  OwnModel(const OwnModel&) = delete;
  OwnModel& operator=(const OwnModel&) = delete;

  ds_step_report step(ds_tensor* first, ds_tensor* second) {
    ds_tensor* const gradients[] = {first, second};
    EXPECT_EQ(ds_engine_add_gradients(engine, nullptr, gradients, 2), DS_OK)
        << ds_last_error_message();
    ds_step_report report = {};
    report.struct_size = sizeof report;
    EXPECT_EQ(ds_engine_step(engine, &report), DS_OK) << ds_last_error_message();
    return report;
  }
  std::vector<float> weights(const char* name) {
    ds_tensor* tensor = nullptr;
    EXPECT_EQ(ds_model_get_parameter(model, index_of(model, name), &tensor), DS_OK)
        << ds_last_error_message();
    std::vector<float> out(kElements);
    EXPECT_EQ(ds_tensor_read(tensor, out.data(), kElements * 4), DS_OK);
    ds_tensor_destroy(tensor);
    return out;
  }

  ds_model* model = nullptr;
  ds_engine* engine = nullptr;
};

struct HostTensor {
  explicit HostTensor(std::vector<float> values) : data(std::move(values)) {
    const int64_t shape[] = {kRows, kColumns};
    EXPECT_EQ(ds_tensor_from_buffer(data.data(), DS_FLOAT32, shape, nullptr, 2, nullptr, nullptr,
                                    &tensor),
              DS_OK);
  }
  ~HostTensor() { ds_tensor_destroy(tensor); }
  HostTensor(const HostTensor&) = delete;
  HostTensor& operator=(const HostTensor&) = delete;
  std::vector<float> data;
  ds_tensor* tensor = nullptr;
};

}  // namespace ds::dlpack_test
