#include "nn/stored_inputs.h"

#include <exception>
#include <utility>

#include "base/error.h"
#include "tensor/transfer.h"

namespace ds::nn {

class StoredInputs::Kept {
 public:
  // It stays in memory.
  explicit Kept(Tensor x) : here_(std::move(x)) {}
  Kept(StoreRoom& room, const Tensor& x)
      : device_(on_host(x) ? nullptr : x.storage()->device()),
        mark_(x),
        room_(&room),
        place_(room.take(x.bytes())) {}
  ~Kept() {
    if (room_ != nullptr) room_->give(place_);
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  bool is(const Tensor& x) const { return mark_.is(x); }

  void write(const Tensor& x) const {
    ArrayLease lease = room_->map(place_, Access::kWrite);
    copy_to_host(x, lease.data().raw());
    lease.close();
  }

  // What somebody else still holds is not read.
  Tensor read() {
    if (room_ == nullptr) return here_;
    Tensor out = mark_.find();
    if (out) return out;
    const ArrayLease lease = room_->map(place_, Access::kRead);
    out = device_ ? on_device(lease.data()) : in_place(lease.data());
    mark_ = TensorMark(out);
    return out;
  }

  void read_ahead() const {
    if (room_ != nullptr && !mark_.find()) room_->prefetch(place_);
  }

 private:
  Tensor on_device(const Tensor& bytes) const {
    Tensor out = Tensor::empty(device_, mark_.dtype(), mark_.shape(), MemoryTag::kActivations);
    copy_from_host(bytes.raw(), out);
    return out;
  }
  Tensor in_place(const Tensor& bytes) const {
    const int64_t offset =
        static_cast<std::byte*>(bytes.raw()) - static_cast<std::byte*>(bytes.storage()->data());
    return {bytes.storage(), offset, mark_.dtype(), mark_.shape()};
  }

  const Tensor here_;
  const std::shared_ptr<Device> device_;  // a GPU that it came from, and goes back to; or null
  TensorMark mark_;
  StoreRoom* const room_ = nullptr;  // null: here_
  const StoreRoom::Place place_;
};

// Memory of what was fetched and not needed goes, too. Whoever lost a tensor has been told.
StoredInputs::~StoredInputs() {
  segments_.clear();
  try {
    room_.flush();
  } catch (const std::exception&) {
  }
}

std::shared_ptr<StoredInputs::Kept> StoredInputs::store(const Tensor& x) {
  std::erase_if(stored_, [](const auto& kept) { return kept.expired(); });
  for (const std::weak_ptr<Kept>& stored : stored_) {
    std::shared_ptr<Kept> kept = stored.lock();
    if (kept->is(x)) return kept;
  }
  auto kept = std::make_shared<Kept>(room_, x);
  kept->write(x);
  stored_.push_back(kept);
  return kept;
}

size_t StoredInputs::keep(std::span<const Tensor> inputs) {
  Segment segment;
  for (const Tensor& x : inputs) {
    // A caller's memory on a GPU stays: nobody could make the like of it.
    const bool travels = x && x.bytes() >= TensorMark::kSmallest && x.contiguous() &&
                         (on_host(x) || x.storage()->device() != nullptr);
    segment.push_back(travels ? store(x) : std::make_shared<Kept>(x));
  }
  segments_.push_back(std::move(segment));
  return segments_.size() - 1;
}

std::vector<Tensor> StoredInputs::fetch(size_t number) {
  const Segment segment = std::exchange(segments_.at(number), {});
  std::vector<Tensor> inputs;
  for (const auto& kept : segment) inputs.push_back(kept->read());
  if (number > 0) {
    for (const auto& kept : segments_[number - 1]) kept->read_ahead();
  }
  return inputs;
}

}  // namespace ds::nn
