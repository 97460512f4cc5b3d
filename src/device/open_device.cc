#include "device/open_device.h"

#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "device/cuda_device.h"

namespace ds {

std::string device_name(const Device& device) {
  if (device.kind() == DeviceKind::kCpu) return "cpu";
  return str_cat("cuda:", device.index());
}

namespace {

// The kind that DS_ACCELERATOR names; without it a GPU's where there is one.
bool accelerator_is_gpu(size_t gpus) {
  const char* const name = std::getenv("DS_ACCELERATOR");
  if (name == nullptr || *name == '\0') return gpus > 0;
  const std::string_view text(name);
  DS_CHECK(text == "cpu" || text == "cuda", Code::kInvalidArgument, "DS_ACCELERATOR is \"",
           printable(name), "\"; this library knows \"cpu\" and \"cuda\"");
  return text == "cuda";
}

// Ranks of one host take its GPUs in turn.
int own_gpu(size_t gpus) {
  const char* const text = std::getenv("LOCAL_RANK");
  if (text == nullptr || gpus == 0) return 0;
  const std::string_view digits(text);
  uint32_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  DS_CHECK(error == std::errc() && end == digits.data() + digits.size(), Code::kInvalidArgument,
           "LOCAL_RANK is \"", printable(text), "\", which is no number");
  return static_cast<int>(rank % gpus);
}

std::shared_ptr<Device> open_automatic_device() {
  const size_t gpus = list_cuda_devices().size();
  if (!accelerator_is_gpu(gpus)) return make_cpu_device();
  return make_cuda_device(own_gpu(gpus));
}

}  // namespace

std::shared_ptr<Device> open_device(std::string_view name) {
  if (name == "auto") return open_automatic_device();
  if (name == "cpu") return make_cpu_device();
  if (name == "cuda") return make_cuda_device(0);
  constexpr std::string_view kGpu = "cuda:";
  int index = 0;
  if (name.starts_with(kGpu)) {
    const std::string_view number = name.substr(kGpu.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    const bool whole = error == std::errc() && end == number.data() + number.size();
    if (whole && number.front() != '-') return make_cuda_device(index);
  }
  fail(Code::kInvalidArgument, "there is no device ", printable(std::string(name)),
       "; \"cpu\", a GPU such as \"cuda:0\", or \"auto\" is possible");
}

}  // namespace ds
