// cuda.
#include "config/config_table.h"

namespace ds {

using namespace keys;

KeyTable cuda_table() {
  return table(
      "Which algorithms a GPU may use while it trains; docs/cuda.md. On the CPU the section "
      "changes "
      "nothing. (Extension.)",
      {
          choice("attention", {"auto", "own", "cudnn"}, "auto",
                 "Who computes attention: auto, cuDNN for the forms where it is expected to be "
                 "faster (compute capability 9.0, heads of 64 to 128, 512 tokens or more); own, "
                 "kernels of this library; cudnn, cuDNN wherever it can.")
              .chooses(std::vector{CudaConfig::Attention::kAuto, CudaConfig::Attention::kOwn,
                                   CudaConfig::Attention::kCudnn},
                       &CudaConfig::attention),
          flag(
              "strict_determinism", false,
              "Only algorithms that their library promises to repeat bit for bit. Without it "
              "gradients of attention that cuDNN computes may differ by roundings from run to run; "
              "with it they take more scratch (up to 1 GiB) or are computed by kernels of this "
              "library.")
              .to(&CudaConfig::strict_determinism),
          flag("time_products", false,
               "In the first step, time the algorithms that cuBLASLt proposes for each form of "
               "matrix product and keep the fastest; rank 0 decides for all ranks. Another run "
               "may choose others, and then has other bits.")
              .to(&CudaConfig::time_products),
          flag("tf32", false,
               "Round the operands of fp32 matrix products to TF32 (10 bits of mantissa).")
              .to(&CudaConfig::tf32),
      });
}

}  // namespace ds
