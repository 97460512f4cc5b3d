#include "device/open_device.h"

#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "device/cuda_device.h"

namespace ds {

std::string device_name(const Device& device) {
  if (device.kind() == DeviceKind::kCpu) return "cpu";
  return str_cat("cuda:", device.index());
}

std::shared_ptr<Device> open_device(std::string_view name) {
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
       "; \"cpu\", or a GPU such as \"cuda:0\", is possible");
}

}  // namespace ds
