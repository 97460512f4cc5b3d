// A program's stream that orders a model's work on the GPU (ds_model_set_stream).
#include "cuda/dlpack_world.h"

namespace ds {
namespace {

using namespace dlpack_test;  // NOLINT: what these tests are about
using ::testing::HasSubstr;

constexpr const char* kConfig = R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})";

// -1: whoever gives the stream orders the work.
void* no_wait() { return reinterpret_cast<void*>(~uintptr_t{0}); }

class CallerStream : public GpuDlpack {
 protected:
  void SetUp() override {
    GpuDlpack::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  void queue_copy(const Loan& from, const Loan& to) {
    ASSERT_EQ(cudaMemcpyAsync(to.data, from.data, kElements * 4, cudaMemcpyDefault, stream_),
              cudaSuccess);
  }
  void finish() { ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }
  ds_tensor* unfinished(Loan& loan) {
    ds_tensor* out = nullptr;
    EXPECT_EQ(ds_tensor_from_dlpack(&loan.managed, no_wait(), &out), DS_OK)
        << ds_last_error_message();
    return out;
  }
  cudaStream_t stream_ = nullptr;
};

// The program makes gradients on its stream, gives them while they are being made, overwrites them,
// and copies the lent weights after the step, all without waiting; beside the same with waits.
TEST_F(CallerStream, OrdersGradientsAndWeights) {
  const std::vector<float> first = numbers(), second = numbers();
  Loan lent(first), gradient(numbers()), junk(numbers()), seen(numbers());
  Loan waiting_lent(first), waiting_gradient(numbers());
  HostTensor copied(second);
  ds_tensor *const lent_tensor = lent.tensor(), *const gradient_tensor = unfinished(gradient),
                   *const waiting_lent_tensor = waiting_lent.tensor(),
                   *const waiting_gradient_tensor = waiting_gradient.tensor();
  {
    OwnModel own(lent_tensor, copied.tensor, kConfig);
    OwnModel waiting(waiting_lent_tensor, copied.tensor, kConfig);
    ASSERT_EQ(ds_model_set_stream(own.model, stream_), DS_OK) << ds_last_error_message();
    for (int step = 0; step < 3; ++step) {
      const std::vector<float> values = numbers();
      const Loan made(values);
      queue_copy(made, gradient);
      ds_tensor* const gradients[] = {gradient_tensor, gradient_tensor};
      ASSERT_EQ(ds_engine_add_gradients(own.engine, nullptr, gradients, 2), DS_OK)
          << ds_last_error_message();
      queue_copy(junk, gradient);
      ds_step_report report = {};
      report.struct_size = sizeof report;
      ASSERT_EQ(ds_engine_step(own.engine, &report), DS_OK) << ds_last_error_message();
      queue_copy(lent, seen);
      finish();

      waiting_gradient.put(values);
      EXPECT_EQ(report.grad_norm,
                waiting.step(waiting_gradient_tensor, waiting_gradient_tensor).grad_norm);
      EXPECT_EQ(seen.get(), waiting_lent.get());
      EXPECT_EQ(own.weights("copied"), waiting.weights("copied"));
    }
    EXPECT_EQ(ds_model_set_stream(own.model, nullptr), DS_OK) << "as before";
    EXPECT_TRUE(own.step(gradient_tensor, gradient_tensor).applied);
  }
  for (ds_tensor* const tensor :
       {lent_tensor, gradient_tensor, waiting_lent_tensor, waiting_gradient_tensor}) {
    ds_tensor_destroy(tensor);
  }
}

// Views of gradients are written on the program's stream; an exported tensor is read on it.
TEST_F(CallerStream, OrdersViews) {
  Loan lent(numbers());
  HostTensor copied(numbers());
  ds_tensor* const lent_tensor = lent.tensor();
  {
    OwnModel own(lent_tensor, copied.tensor,
                 R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
                     "optimizer": {"type": "SGD", "params": {"lr": 0.5}}})");
    ASSERT_EQ(ds_model_set_stream(own.model, stream_), DS_OK) << ds_last_error_message();
    ds_tensor *gradients = nullptr, *weights = nullptr;
    const int64_t index = index_of(own.model, "copied");
    ASSERT_EQ(ds_engine_view_gradient(own.engine, index, &gradients), DS_OK);
    ASSERT_EQ(ds_model_view_parameter(own.model, index, &weights), DS_OK);
    ds_tensor_info info = DS_TENSOR_INFO_INIT;
    ASSERT_EQ(ds_tensor_describe(gradients, &info), DS_OK);
    const std::vector<float> values = numbers();
    const Loan made(values), seen(numbers());
    ASSERT_EQ(cudaMemcpyAsync(info.data, made.data, kElements * 4, cudaMemcpyDefault, stream_),
              cudaSuccess);
    ds_step_report report = {};
    report.struct_size = sizeof report;
    ASSERT_EQ(ds_engine_step(own.engine, &report), DS_OK) << ds_last_error_message();

    DLManagedTensorVersioned* out = nullptr;
    ASSERT_EQ(ds_tensor_to_dlpack(weights, stream_, &out), DS_OK) << ds_last_error_message();
    ASSERT_EQ(
        cudaMemcpyAsync(seen.data, out->dl_tensor.data, kElements * 4, cudaMemcpyDefault, stream_),
        cudaSuccess);
    finish();
    const std::vector<float> after = seen.get();
    for (size_t i = 0; i < kElements; ++i) {
      EXPECT_NEAR(after[i], copied.data[i] - 0.5f * values[i], 1e-6);
    }
    out->deleter(out);
    ds_tensor_destroy(weights);
    ds_tensor_destroy(gradients);
  }
  ds_tensor_destroy(lent_tensor);
}

TEST_F(CallerStream, NeedsAGpu) {
  HostTensor first(numbers()), second(numbers());
  OwnModel own(first.tensor, second.tensor, kConfig);
  EXPECT_THAT(refused(ds_model_set_stream(own.model, stream_), DS_ERR_UNSUPPORTED),
              HasSubstr("host memory, which has no streams"));
  EXPECT_EQ(ds_model_set_stream(own.model, nullptr), DS_OK);
}

}  // namespace
}  // namespace ds
