// Arrays of numbers that lie in memory, or elsewhere, such as in a file. Who works with one maps a
// range of it and gets a lease: of memory a view, which costs nothing, else a buffer that holds the
// range until the lease is closed. So what is mapped at a time bounds the memory that is needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "tensor/tensor.h"

namespace ds {

// What is done with a range while it is mapped. kWrite: all of it is written, and what it held is
// not read.
enum class Access { kRead, kWrite, kReadWrite };

// Where numbers lie that do not lie in memory. One thread at a time uses a store, and ranges that
// are mapped at the same time overlap only where all are read.
class ArrayStore {
 public:
  ArrayStore(DType dtype, int64_t elements) : dtype_(dtype), elements_(elements) {}
  virtual ~ArrayStore() = default;
  ArrayStore(const ArrayStore&) = delete;
  ArrayStore& operator=(const ArrayStore&) = delete;

  DType dtype() const { return dtype_; }
  int64_t elements() const { return elements_; }
  // How many are best mapped at a time where nothing needs more.
  virtual int64_t part_elements() const = 0;

  // The range will be mapped soon, and what it holds read.
  virtual void prefetch(int64_t /*begin*/, int64_t /*end*/) {}
  // Waits until everything that was written rests.
  virtual void flush() = 0;

  // So many elements, the first ones, lie in the memory of a GPU.
  virtual int64_t device_elements() const { return 0; }
  // A range as it lies in memory, the host's or a GPU's, where all of it lies in one of them; else
  // no tensor.
  virtual Tensor view(int64_t /*begin*/, int64_t /*end*/) const { return {}; }

 protected:
  friend class ArrayLease;
  // Host memory for a range, flat, with what the range holds unless `access` is kWrite.
  virtual Tensor open(int64_t begin, int64_t end, Access access) = 0;
  // Takes that memory back, and what was written in it, also when it throws. What was written may
  // be on its way on return: an error of it shows here, where the range is mapped again, or in
  // flush.
  virtual void write_back(Tensor memory, int64_t begin) = 0;
  // Takes it back alone: the range holds what it held before.
  virtual void drop(Tensor memory) noexcept = 0;

 private:
  const DType dtype_;
  const int64_t elements_;
};

// A range of an array in memory. What was written goes back where close() is called, which reports
// the errors of that; a lease that ends without it, as when an error passes, gives its write up:
// a store then holds what it held before, and memory what was written so far. The array outlives
// the lease.
class ArrayLease {
 public:
  ArrayLease() = default;
  explicit ArrayLease(Tensor view) : data_(std::move(view)) {}
  ArrayLease(ArrayStore& store, int64_t begin, int64_t end, Access access)
      : data_(store.open(begin, end, access)),
        store_(&store),
        begin_(begin),
        writes_(access != Access::kRead) {}
  ~ArrayLease() { drop(); }
  ArrayLease(ArrayLease&& other) noexcept { *this = std::move(other); }
  ArrayLease& operator=(ArrayLease&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(store_, other.store_);
    std::swap(begin_, other.begin_);
    std::swap(writes_, other.writes_);
    return *this;
  }

  explicit operator bool() const { return static_cast<bool>(data_); }
  // Flat, as many elements as were mapped.
  Tensor& data() { return data_; }
  const Tensor& data() const { return data_; }
  // Of memory: nothing has to be given back.
  bool is_view() const { return store_ == nullptr; }

  void close() {
    if (store_ != nullptr && writes_) {
      std::exchange(store_, nullptr)->write_back(std::exchange(data_, {}), begin_);
    }
    drop();
  }

 private:
  void drop() noexcept {
    Tensor memory = std::exchange(data_, {});
    if (store_ != nullptr) std::exchange(store_, nullptr)->drop(std::move(memory));
  }

  Tensor data_;
  ArrayStore* store_ = nullptr;
  int64_t begin_ = 0;
  bool writes_ = false;
};

// An array, wherever it lies. Copies share it.
class StoredArray {
 public:
  StoredArray() = default;                                    // "no array"
  StoredArray(Tensor memory) : memory_(std::move(memory)) {}  // flat
  StoredArray(std::shared_ptr<ArrayStore> store) : store_(std::move(store)) {}

  explicit operator bool() const { return in_memory() || store_ != nullptr; }
  DType dtype() const { return store_ ? store_->dtype() : memory_.dtype(); }
  int64_t elements() const {
    return store_ ? store_->elements() : in_memory() ? memory_.elements() : 0;
  }
  bool in_memory() const { return static_cast<bool>(memory_); }
  // All of it, for those who have a reason to need it so; kInternal where it lies elsewhere.
  const Tensor& memory() const {
    DS_CHECK(!store_, Code::kInternal, "an array of ", elements(), " ", dtype_name(dtype()),
             " is used as memory, and it does not lie there");
    return memory_;
  }

  // How many elements, the first ones, lie in the memory of a GPU while the array as a whole does
  // not. Who computes there has them with view(); mapped they are copies in the host's memory.
  int64_t device_elements() const { return store_ ? store_->device_elements() : 0; }
  // Elements [begin, end) as they lie in memory, where they do; else no tensor.
  Tensor view(int64_t begin, int64_t end) const {
    return store_ ? store_->view(begin, end) : memory_.slice(0, begin, end);
  }

  // Elements [begin, end).
  ArrayLease map(int64_t begin, int64_t end, Access access) const {
    if (!store_) return ArrayLease(memory_.slice(0, begin, end));
    return {*store_, begin, end, access};
  }
  void prefetch(int64_t begin, int64_t end) const {
    if (store_) store_->prefetch(begin, end);
  }
  void flush() const {
    if (store_) store_->flush();
  }

  // Calls body(part, at) for the parts of a range in their order, each mapped while it runs; `at`
  // is counted from `begin`. Memory is one part.
  template <class Body>
  void for_parts(int64_t begin, int64_t end, Access access, const Body& body) const {
    const int64_t size = store_ ? part_elements() : end - begin;
    for (int64_t at = begin, next; at < end; at = next) {
      next = std::min(end, at + size);
      ArrayLease lease = map(at, next, access);
      if (access != Access::kWrite && next < end) prefetch(next, std::min(end, next + size));
      body(lease.data(), at - begin);
      lease.close();
    }
  }

  // How many are best mapped at a time of one that does not lie in memory. Parts are cut where
  // sums by blocks and blocks of 8-bit states are cut anyway.
  int64_t part_elements() const {
    return std::max<int64_t>(1, store_->part_elements() / kUnit) * kUnit;
  }

 private:
  static constexpr int64_t kUnit = 256;

  Tensor memory_;
  std::shared_ptr<ArrayStore> store_;
};

}  // namespace ds
