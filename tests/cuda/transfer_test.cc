// Copies between the host and a GPU: every size around the pieces that travel, both kinds of host
// memory, rows, and what is left behind.
#include "tensor/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/text.h"
#include "device/cuda_device.h"
#include "fresh_seed.h"
#include "ops/reduce.h"
#include "ops/stored_array.h"
#include "tensor/device_array.h"
#include "tensor/split_array.h"
#include "unit/base/expect_error.h"

namespace ds {
namespace {

class GpuTransfer : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_none;
    if (list_cuda_devices(&why_none).empty()) GTEST_SKIP() << "needs a GPU: " << why_none;
    device_ = make_cuda_device(0);
  }
  Tensor on_gpu(int64_t bytes) const {
    return Tensor::empty(device_, DType::kUInt8, {bytes}, MemoryTag::kOther);
  }
  static std::vector<uint8_t> random_bytes(int64_t n) {
    std::mt19937_64 random(ds::fresh_seed());
    std::vector<uint8_t> out(static_cast<size_t>(n));
    for (uint8_t& x : out) x = static_cast<uint8_t>(random());
    return out;
  }
  static std::vector<uint8_t> bytes_of(const Tensor& x) {
    std::vector<uint8_t> out(static_cast<size_t>(x.bytes()));
    copy_to_host(x, out.data());
    return out;
  }

  std::shared_ptr<CudaDevice> device_;
};

TEST_F(GpuTransfer, EverySizeArrives) {
  constexpr int64_t kPiece = int64_t{4} << 20;
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{1000}, kPiece - 1, kPiece, kPiece + 1,
                          2 * kPiece, 2 * kPiece + 7, 3 * kPiece + 5}) {
    const std::vector<uint8_t> given = random_bytes(n);
    const Tensor there = on_gpu(n);
    copy_from_host(given.data(), there);
    EXPECT_EQ(bytes_of(there), given) << n;
  }
  device_->trim();  // gives back what uploads have kept
  EXPECT_EQ(device_->pinned()->account().total_now(), 0);
  EXPECT_GT(device_->pinned()->reserved_bytes(), 0) << "kept for the next copy";
  device_->pinned()->trim();
  EXPECT_EQ(device_->pinned()->reserved_bytes(), 0);
}

TEST_F(GpuTransfer, BetweenAllKindsOfMemory) {
  const std::vector<uint8_t> given = random_bytes(5000);
  const std::shared_ptr<Device> host = make_cpu_device();
  EXPECT_EQ(host_memory_of(host), host);
  EXPECT_EQ(host_memory_of(device_), device_->pinned());
  const auto empty_in = [](const std::shared_ptr<Device>& place) {
    return Tensor::empty(place, DType::kUInt8, {5000}, MemoryTag::kOther);
  };
  const std::vector<std::shared_ptr<Device>> places{host, device_->pinned(), device_};
  for (const auto& from : places) {
    for (const auto& to : places) {
      const Tensor a = empty_in(from), b = empty_in(to);
      copy_from_host(given.data(), a);
      copy_tensor(a, b);
      EXPECT_EQ(bytes_of(b), given);
    }
  }
  const Tensor there = empty_in(device_), here = empty_in(host);
  EXPECT_FALSE(on_host(there));
  EXPECT_EQ(to_host(here, host).raw(), here.raw());
  EXPECT_NE(copied_to_host(here, host).raw(), here.raw());
  EXPECT_TRUE(on_host(to_host(there, host)));
  EXPECT_EQ(to_device(there, device_).raw(), there.raw());
  EXPECT_FALSE(on_host(to_device(here, device_)));
  EXPECT_FALSE(to_device(Tensor(), device_));
}

// An array of which a share lies on the GPU: what is mapped is what one in memory holds, whichever
// places a range has; what is written goes there, and what is given up does not.
TEST_F(GpuTransfer, AnArrayInTwoPlacesHoldsWhatOneInMemoryDoes) {
  const std::shared_ptr<Device> host = make_cpu_device();
  ThreadPool pool(1);
  const OpContext ctx{host, &pool};
  constexpr int64_t kCount = 4096;
  const uint64_t seed = ds::fresh_seed();
  std::mt19937_64 random(seed);
  for (const int64_t here : {int64_t{0}, int64_t{1024}, kCount}) {
    SCOPED_TRACE(str_cat(here, ", seed ", seed));
    const StoredArray array(std::make_shared<SplitArray>(
        StoredArray(std::make_shared<DeviceArray>(
            Tensor::zeros(device_, DType::kFloat32, {here}, MemoryTag::kOther), host)),
        Tensor::zeros(host, DType::kFloat32, {kCount - here}, MemoryTag::kOther)));
    EXPECT_EQ(array.device_elements(), here);
    EXPECT_FALSE(array.in_memory());
    std::vector<float> expected(kCount, 0.0f);
    for (int turn = 0; turn < 40; ++turn) {
      const int64_t begin = std::uniform_int_distribution<int64_t>(0, kCount - 1)(random);
      const int64_t end = std::uniform_int_distribution<int64_t>(begin + 1, kCount)(random);
      const bool all = turn % 2 == 0, given_up = turn % 3 == 0;
      ArrayLease lease = array.map(begin, end, all ? Access::kWrite : Access::kReadWrite);
      auto* const values = lease.data().data<float>();
      for (int64_t i = begin; i < end; i += all ? 1 : 3) {
        values[i - begin] = static_cast<float>(i + turn);
        // Memory of the host is written at once.
        if (!given_up || begin >= here) expected[static_cast<size_t>(i)] = values[i - begin];
      }
      if (!given_up) lease.close();
    }
    Tensor read = Tensor::empty(host, DType::kFloat32, {kCount}, MemoryTag::kOther);
    ops::read_array(ctx, array, 0, read);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), read.data<float>()));
    EXPECT_EQ(ops::exact_squares(ctx, array, 0, kCount).value(),
              ops::exact_squares(ctx, read).value());
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, 1000}, {1024, 2048}, {1000, 1025}}) {
      const Tensor view = array.view(begin, end);
      ASSERT_EQ(static_cast<bool>(view), begin >= here || end <= here) << begin;
      if (!view) continue;
      EXPECT_EQ(on_host(view), begin >= here);
      const Tensor there = copied_to_host(view, host);
      EXPECT_TRUE(
          std::equal(expected.begin() + begin, expected.begin() + end, there.data<float>()));
    }
    ops::fill_array(ctx, 2.0f, array, 100, 3000);
    ops::scale_array(ctx, array, 0, kCount, 0.5f);
    ops::read_array(ctx, array, 0, read);
    for (int64_t i = 0; i < kCount; ++i) {
      const float before = i >= 100 && i < 3000 ? 2.0f : expected[static_cast<size_t>(i)];
      ASSERT_EQ(read.data<float>()[i], 0.5f * before) << i;
    }
  }
}

// The host changes what it gave away at once, and reads nothing before it asks.
TEST_F(GpuTransfer, UploadsAndFetchesOverlap) {
  constexpr int64_t kBytes = 3000, kCount = 40;
  const Tensor there = on_gpu(kBytes);
  std::vector<std::vector<uint8_t>> given;
  std::vector<Fetched> fetched;
  std::vector<uint8_t> here(kBytes);
  for (int64_t i = 0; i < kCount; ++i) {
    given.push_back(random_bytes(kBytes));
    here = given.back();
    copy_from_host(here.data(), there);
    std::fill(here.begin(), here.end(), uint8_t{0});
    fetched.emplace_back(there);
  }
  fetched.emplace_back(there);  // is not asked for
  for (size_t i = 0; i < given.size(); ++i) {
    const Tensor& got = fetched[i].host();
    EXPECT_TRUE(on_host(got));
    EXPECT_EQ(bytes_of(got), given[i]);
  }
  const Tensor host = Tensor::zeros(make_cpu_device(), DType::kUInt8, {5}, MemoryTag::kOther);
  EXPECT_EQ(Fetched(host).host().raw(), host.raw());
}

TEST_F(GpuTransfer, QueuedWorkComesFirst) {
  const Tensor there = on_gpu(64);
  device_->clear(there.raw(), 64, device_->default_stream());
  EXPECT_EQ(bytes_of(there), std::vector<uint8_t>(64));
}

TEST_F(GpuTransfer, RowsGoWhereTheyBelong) {
  constexpr int64_t kRows = 5, kWidth = 6, kFrom = 11, kTo = 9;
  const std::vector<uint8_t> given = random_bytes(kRows * kFrom);
  for (const std::shared_ptr<Device>& place :
       {std::shared_ptr<Device>(device_), make_cpu_device()}) {
    const Tensor from = Tensor::empty(place, DType::kUInt8, {kRows * kFrom}, MemoryTag::kOther);
    const Tensor to = Tensor::zeros(place, DType::kUInt8, {kRows * kTo}, MemoryTag::kOther);
    copy_from_host(given.data(), from);
    copy_rows(*place, {to.raw(), kTo}, {from.raw(), kFrom}, kWidth, kRows);
    const std::vector<uint8_t> got = bytes_of(to);
    for (int64_t i = 0; i < kRows * kTo; ++i) {
      const int64_t row = i / kTo, column = i % kTo;
      EXPECT_EQ(got[static_cast<size_t>(i)],
                column < kWidth ? given[static_cast<size_t>(row * kFrom + column)] : 0)
          << row << ", " << column;
    }
  }
  const Tensor small = on_gpu(10);
  testing::expect_error(Code::kInvalidArgument, {"rows"}, [&] {
    copy_rows(*device_, {small.raw(), 1}, {small.raw(), 2}, 2, 2);
  });
}

TEST_F(GpuTransfer, WhatCannotTravel) {
  const Tensor there = on_gpu(12);
  const Tensor strided = there.view({3, 4}).slice(1, 0, 2);
  testing::expect_error(Code::kInternal, {"packed"}, [&] { bytes_of(strided); });
  testing::expect_error(Code::kInternal, {"12 bytes"}, [&] { copy_tensor(there, on_gpu(13)); });
}

}  // namespace
}  // namespace ds
