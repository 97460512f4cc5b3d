// How often the host waits where a program's stream orders the work, counted by the stand-in of
// CUDA.
#include "cuda/dlpack_world.h"
#include "cuda/emulation/stand_in.h"

namespace ds {
namespace {

using namespace dlpack_test;  // NOLINT: what these tests are about
using testing::stand_in::host_waits;

TEST_F(GpuDlpack, CallersStreamsSpareWaits) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  Loan first(numbers()), second(numbers()), loan(numbers());
  ds_tensor *const values[] = {first.tensor(), second.tensor()}, *const gradient = loan.tensor();
  {
    OwnModel own(values[0], values[1],
                 R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
                     "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})");
    const auto waits_of_micro_batch = [&] {
      const int64_t before = host_waits();
      own.step(gradient, gradient);
      return host_waits() - before;
    };
    for (int i = 0; i < 2; ++i) waits_of_micro_batch();  // makes what later steps have
    EXPECT_GE(waits_of_micro_batch(), 2) << "gradients, step";
    EXPECT_GE(waits_of_micro_batch(), 2);
    ASSERT_EQ(ds_model_set_stream(own.model, stream), DS_OK) << ds_last_error_message();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(waits_of_micro_batch(), 0) << "a micro batch that makes no step";
      EXPECT_EQ(waits_of_micro_batch(), 1) << "the norm in the report of a step";
    }
  }
  for (ds_tensor* const tensor : {values[0], values[1], gradient}) ds_tensor_destroy(tensor);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace ds
