#include "engine/rank_devices.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/text.h"
#include "device/cuda_device.h"

namespace ds {
namespace {

// What a rank tells the others.
struct Place {
  char gpu[40] = {};  // which GPU of the machine that is; "" on the CPU
  char name[88] = {};
};

Place place_of(const Device& device) {
  Place place;
  const std::string name = device.describe();
  std::strncpy(place.name, name.c_str(), sizeof(place.name) - 1);
  if (device.kind() == DeviceKind::kCpu) return place;
  const std::string uuid = list_cuda_devices().at(static_cast<size_t>(device.index())).uuid;
  std::strncpy(place.gpu, uuid.empty() ? "unknown" : uuid.c_str(), sizeof(place.gpu) - 1);
  return place;
}

}  // namespace

void check_rank_devices(const Device& device, Communicator& comm) {
  if (comm.size() == 1) return;
  if (!comm.moves_gpu_memory()) {
    DS_CHECK(device.kind() == DeviceKind::kCpu, Code::kUnsupported, "the model is on ",
             device.describe(), ", and ", comm.size(), " ranks are to train it over transport \"",
             comm.transport(),
             "\", which moves host memory alone; make the communicator with transport \"nccl\"");
    return;
  }
  const std::shared_ptr<Device> host = make_cpu_device({.cache = false});
  const auto bytes = [&](int64_t ranks) {
    return Tensor::empty(host, DType::kUInt8, {ranks * static_cast<int64_t>(sizeof(Place))},
                         MemoryTag::kCommunication);
  };
  const Tensor own = bytes(1), all = bytes(comm.size());
  const Place mine = place_of(device);
  std::memcpy(own.raw(), &mine, sizeof(mine));
  comm.all_gather(all, own, {.label = "devices of models", .blocking = true})->wait();
  std::vector<Place> places(static_cast<size_t>(comm.size()));
  std::memcpy(places.data(), all.raw(), static_cast<size_t>(all.bytes()));
  for (size_t rank = 1; rank < places.size(); ++rank) {
    const Place& place = places[rank];
    DS_CHECK((place.gpu[0] == 0) == (places[0].gpu[0] == 0), Code::kUnsupported,
             "the model of rank 0 is on ", places[0].name, ", that of rank ", rank, " on ",
             place.name, "; all must be on GPUs, or all on the CPU (ds_model_set_device)");
    if (place.gpu[0] == 0) continue;
    const auto same =
        std::find_if(places.begin(), places.begin() + static_cast<int64_t>(rank),
                     [&](const Place& other) { return std::strcmp(other.gpu, place.gpu) == 0; });
    DS_CHECK(same == places.begin() + static_cast<int64_t>(rank), Code::kUnsupported,
             "the models of ranks ", same - places.begin(), " and ", rank, " are on one GPU, ",
             place.name, "; each rank needs its own (ds_model_set_device, --device cuda)");
  }
}

}  // namespace ds
