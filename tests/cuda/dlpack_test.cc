// Programs that keep their tensors on a GPU: DLPack in and out, own parameters, gradients, lent
// weights, through ds.h, beside the same in host memory.
#include "cuda/dlpack_world.h"

namespace ds {
namespace {

using namespace dlpack_test;  // NOLINT: what these tests are about
using ::testing::HasSubstr;

TEST_F(GpuDlpack, GoesInAndOut) {
  const std::vector<float> values = numbers(), others = numbers();
  Loan loan(values);
  ds_tensor* const tensor = loan.tensor();
  ds_tensor_info info = DS_TENSOR_INFO_INIT;
  EXPECT_EQ(ds_tensor_describe(tensor, &info), DS_OK);
  EXPECT_EQ(info.device_kind, DS_DEVICE_CUDA);
  EXPECT_EQ(info.device_index, 0);
  EXPECT_EQ(read(tensor), values);
  EXPECT_EQ(ds_tensor_write(tensor, others.data(), kElements * 4), DS_OK);
  EXPECT_EQ(loan.get(), others);

  DLManagedTensorVersioned* out = nullptr;
  ASSERT_EQ(ds_tensor_to_dlpack(tensor, nullptr, &out), DS_OK) << ds_last_error_message();
  EXPECT_EQ(out->dl_tensor.data, loan.data);
  EXPECT_EQ(out->dl_tensor.device.device_type, kDLCUDA);
  EXPECT_EQ(out->dl_tensor.device.device_id, 0);
  ds_tensor_destroy(tensor);
  EXPECT_EQ(loan.deleted, 0);
  out->deleter(out);
  EXPECT_EQ(loan.deleted, 1);
}

TEST_F(GpuDlpack, StridesAndScalars) {
  const std::vector<float> values = numbers();
  Loan loan(values);
  loan.managed.dl_tensor.strides = loan.strides;  // columns one after another
  ds_tensor* const tensor = loan.tensor();
  std::vector<float> expected(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    expected[i] = values[i / kColumns + i % kColumns * kRows];
  }
  EXPECT_EQ(read(tensor), expected);
  EXPECT_EQ(ds_tensor_write(tensor, values.data(), kElements * 4), DS_OK);
  EXPECT_EQ(read(tensor), values);
  ds_tensor_destroy(tensor);

  Loan one({42});
  one.shape[0] = one.shape[1] = 1;
  ds_tensor* const scalar = one.tensor();
  double item = 0;
  EXPECT_EQ(ds_tensor_item(scalar, &item), DS_OK);
  EXPECT_EQ(item, 42);
  ds_tensor_destroy(scalar);
}

// The lender's work is waited for.
TEST_F(GpuDlpack, FollowsTheLendersStream) {
  const std::vector<float> values = numbers();
  Loan loan(numbers());
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(loan.data, values.data(), kElements * 4, cudaMemcpyDefault, stream),
            cudaSuccess);
  ds_tensor* tensor = nullptr;
  ASSERT_EQ(ds_tensor_from_dlpack(&loan.managed, stream, &tensor), DS_OK);
  EXPECT_EQ(read(tensor), values);
  ds_tensor_destroy(tensor);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(GpuDlpack, RefusesWhatIsNotThere) {
  std::vector<float> host = numbers();
  Loan loan(host);
  ds_tensor* out = nullptr;
  const auto take = [&] { return ds_tensor_from_dlpack(&loan.managed, nullptr, &out); };
  loan.managed.dl_tensor.data = host.data();
  EXPECT_THAT(refused(take(), DS_ERR_INVALID_ARGUMENT), HasSubstr("is no memory of a GPU"));
  loan.managed.dl_tensor.data = loan.data;
  loan.managed.dl_tensor.device.device_id = 77;
  EXPECT_THAT(refused(take(), DS_ERR_INVALID_ARGUMENT), HasSubstr("cuda:77 does not exist"));
  loan.managed.dl_tensor.device.device_id = -1;
  EXPECT_THAT(refused(take(), DS_ERR_INVALID_ARGUMENT), HasSubstr("cuda:-1 does not exist"));
  if (list_cuda_devices().size() > 1) {
    loan.managed.dl_tensor.device.device_id = 1;
    EXPECT_THAT(refused(take(), DS_ERR_INVALID_ARGUMENT), HasSubstr("is memory of cuda:0"));
  }
  loan.managed.dl_tensor.device = {kDLROCM, 0};
  EXPECT_THAT(refused(take(), DS_ERR_UNSUPPORTED), HasSubstr("ROCm"));
  EXPECT_EQ(out, nullptr);
  EXPECT_EQ(loan.deleted, 0) << "it is still the caller's";
}

TEST_F(GpuDlpack, CallsForTheHostSayWhere) {
  Loan loan(numbers());
  ds_tensor* const tensor = loan.tensor();
  ds_comm* comm = nullptr;
  ASSERT_EQ(ds_comm_create(0, 1, nullptr, nullptr, &comm), DS_OK) << ds_last_error_message();
  EXPECT_THAT(refused(ds_comm_all_reduce(comm, tensor, DS_REDUCE_SUM), DS_ERR_UNSUPPORTED),
              HasSubstr("tensor must lie in host memory; it lies on cuda:0"));
  ds_comm_destroy(comm);
  ds_model* model = nullptr;
  ASSERT_EQ(ds_model_create(R"({"model_type": "gpt2", "vocab_size": 8, "n_positions": 8,
                                "n_embd": 8, "n_layer": 1, "n_head": 1})",
                            1, &model),
            DS_OK)
      << ds_last_error_message();
  ds_generator* generator = nullptr;
  ASSERT_EQ(ds_generator_create(model, nullptr, &generator), DS_OK) << ds_last_error_message();
  ds_batch batch = DS_BATCH_INIT;
  batch.ids = tensor;
  ds_tensor* logits = nullptr;
  EXPECT_THAT(refused(ds_generator_logits(generator, &batch, &logits), DS_ERR_UNSUPPORTED),
              HasSubstr("ids must lie in host memory"));
  ds_generator_destroy(generator);
  ds_model_destroy(model);
  ds_tensor_destroy(tensor);
}

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) {
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-6) << i;
}

// A few roundings of the update apart.
TEST_F(GpuDlpack, OwnParametersFollowTheHost) {
  for (const char* const config :
       {R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})",
        R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
            "optimizer": {"type": "Lion", "params": {"lr": 0.01}}})"}) {
    const std::vector<float> first = numbers(), second = numbers();
    Loan lent(first), copied(second), gradient_memory(numbers());
    HostTensor host_lent(first), host_copied(second);
    ds_tensor* const lent_tensor = lent.tensor();
    ds_tensor* const copied_tensor = copied.tensor();
    ds_tensor* const gradient = gradient_memory.tensor();
    {
      OwnModel gpu(lent_tensor, copied_tensor, config);
      OwnModel cpu(host_lent.tensor, host_copied.tensor, config);
      copied.put(numbers());  // a copy was taken
      for (int i = 0; i < 4; ++i) {
        const std::vector<float> values = numbers();
        gradient_memory.put(values);
        HostTensor host_gradient(values);
        // One from the GPU, one from the host.
        const ds_step_report actual = gpu.step(gradient, host_gradient.tensor);
        const ds_step_report expected = cpu.step(host_gradient.tensor, host_gradient.tensor);
        EXPECT_EQ(actual.applied, expected.applied);
        EXPECT_EQ(actual.grad_norm, expected.grad_norm) << "sums are exact";
        expect_near(lent.get(), host_lent.data);
        expect_near(gpu.weights("copied"), cpu.weights("copied"));
      }
      // A value of the caller, from the GPU.
      const std::vector<float> values = numbers();
      gradient_memory.put(values);
      EXPECT_EQ(ds_model_set_parameter(gpu.model, index_of(gpu.model, "lent"), gradient), DS_OK)
          << ds_last_error_message();
      EXPECT_EQ(lent.get(), values);
    }
    for (ds_tensor* const tensor : {lent_tensor, copied_tensor, gradient})
      ds_tensor_destroy(tensor);
    EXPECT_EQ(lent.deleted + copied.deleted + gradient_memory.deleted, 3);
  }
}

TEST_F(GpuDlpack, ViewsOfWeightsAndGradients) {
  Loan lent(numbers()), copied(numbers());
  ds_tensor* const lent_tensor = lent.tensor();
  ds_tensor* const copied_tensor = copied.tensor();
  {
    OwnModel own(lent_tensor, copied_tensor,
                 R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
                     "optimizer": {"type": "SGD", "params": {"lr": 0.5}}})");
    ds_tensor *weights = nullptr, *gradients = nullptr;
    ASSERT_EQ(ds_model_view_parameter(own.model, index_of(own.model, "copied"), &weights), DS_OK)
        << ds_last_error_message();
    ASSERT_EQ(ds_engine_view_gradient(own.engine, index_of(own.model, "copied"), &gradients), DS_OK)
        << ds_last_error_message();
    ds_tensor_info info = DS_TENSOR_INFO_INIT;
    ASSERT_EQ(ds_tensor_describe(gradients, &info), DS_OK);
    const std::vector<float> before = read(weights), values = numbers();
    copy_and_wait(values, info.data);
    ds_step_report report = {};
    report.struct_size = sizeof report;
    ASSERT_EQ(ds_engine_step(own.engine, &report), DS_OK) << ds_last_error_message();
    const std::vector<float> after = read(weights);
    for (size_t i = 0; i < kElements; ++i) {
      EXPECT_NEAR(after[i], before[i] - 0.5f * values[i], 1e-6);
    }
    EXPECT_EQ(read(gradients), std::vector<float>(kElements)) << "a step empties them";
    ds_tensor_destroy(weights);
    ds_tensor_destroy(gradients);
  }
  ds_tensor_destroy(lent_tensor);
  ds_tensor_destroy(copied_tensor);
}

TEST_F(GpuDlpack, MemoryOfTwoPlacesIsRefused) {
  Loan on_gpu(numbers());
  ds_tensor* const tensor = on_gpu.tensor();
  HostTensor on_host(numbers());
  ds_parameter parameters[2] = {};
  ds_tensor* const values[] = {tensor, on_host.tensor};
  for (int i = 0; i < 2; ++i) {
    parameters[i].struct_size = sizeof(ds_parameter);
    parameters[i].name = i == 0 ? "a" : "b";
    parameters[i].value = values[i];
    parameters[i].lend = 1;
  }
  ds_model* model = nullptr;
  EXPECT_THAT(refused(ds_model_create_from_parameters(parameters, 2, &model), DS_ERR_UNSUPPORTED),
              HasSubstr("parameters[1].value is lent in host memory"));
  parameters[1].lend = 0;
  ASSERT_EQ(ds_model_create_from_parameters(parameters, 2, &model), DS_OK)
      << ds_last_error_message();
  EXPECT_THAT(refused(ds_model_set_device(model, "cpu"), DS_ERR_UNSUPPORTED), HasSubstr("lent"));
  ds_model_destroy(model);
  // What is not lent may move.
  parameters[0].lend = 0;
  ASSERT_EQ(ds_model_create_from_parameters(parameters + 1, 1, &model), DS_OK);
  EXPECT_EQ(ds_model_set_device(model, "cuda:0"), DS_OK) << ds_last_error_message();
  ds_tensor* moved = nullptr;
  EXPECT_EQ(ds_model_get_parameter(model, index_of(model, "b"), &moved), DS_OK);
  EXPECT_EQ(read(moved), on_host.data);
  ds_tensor_destroy(moved);
  ds_model_destroy(model);
  ds_tensor_destroy(tensor);
}

}  // namespace
}  // namespace ds
