// Tensors flattened, unflattened and quantised, coalesced collectives, memory of the caller's
// allocator and the report of memory, through the C ABI.
#include <gmock/gmock.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/json.h"
#include "base/text.h"
#include "capi/ranks.h"
#include "capi/world.h"
#include "ds.hpp"
#include "fresh_seed.h"

namespace capi_test {
namespace {

using libds::Comm;
using libds::Tensor;
using ::testing::HasSubstr;

TEST(Pieces, FlatAndBack) {
  const Tensor a = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  float turned[] = {10, 11, 12, 13};
  const Tensor b = Tensor::wrap(turned, DS_FLOAT32, {2, 2}, {1, 2});  // columns first
  const Tensor none(DS_FLOAT32, {0, 7});
  const Tensor flat = libds::flatten({&a, &b, &none});
  EXPECT_EQ(flat.to_vector<float>(), (std::vector<float>{1, 2, 3, 4, 5, 6, 10, 12, 11, 13}));
  std::vector<Tensor> views = libds::unflatten(flat, {&a, &b, &none});
  ASSERT_EQ(views.size(), 3u);
  EXPECT_EQ(views[1].shape(), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(views[1].to_vector<float>(), (std::vector<float>{10, 12, 11, 13}));
  EXPECT_EQ(views[2].elements(), 0);
  // Views, not copies: one memory, which outlives the flat handle.
  EXPECT_EQ(views[1].data(), static_cast<float*>(flat.data()) + 6);
  const std::vector<float> other = {7, 7, 7, 7, 7, 7};
  views[0].write(other.data(), 6);
  EXPECT_EQ(flat.to_vector<float>()[5], 7);
}

TEST(Pieces, FlatteningIsChecked) {
  World world;
  ds_tensor* out = nullptr;
  ds_tensor* const mixed[] = {world.tensor, world.ids};
  EXPECT_EQ(ds_tensor_flatten(mixed, 2, &out), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("tensors[1] is int32, the first one float32"));
  for (const int64_t count : {int64_t{0}, int64_t{-1}}) {
    EXPECT_EQ(ds_tensor_flatten(mixed, count, &out), DS_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(ds_tensor_unflatten(world.list, mixed, count, &out), DS_ERR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(ds_tensor_unflatten(world.list, mixed, 1, &out), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("shapes_like have 6 elements, flat has 5"));
  EXPECT_EQ(ds_tensor_unflatten(world.tensor, mixed, 1, &out), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("one packed dimension"));
  EXPECT_EQ(out, nullptr);
}

// Every code is the nearest one to element / scale, computed here in double, and what comes back is
// off by at most half a step; the element of largest magnitude comes back as it was.
TEST(Pieces, BlocksAreQuantised) {
  const uint64_t seed = ds::fresh_seed();
  for (const int bits : {8, 4}) {
    for (const int64_t block : {2, 6, 64, 512}) {
      for (const size_t n : {size_t{1}, size_t{63}, size_t{1000}}) {
        SCOPED_TRACE(ds::str_cat("bits ", bits, ", block ", block, ", n ", n, ", seed ", seed));
        const std::vector<float> x = random_floats(n, seed);
        const auto [codes, scales] = libds::quantize(Tensor::from(x), bits, block);
        const std::vector<float> s = scales.to_vector<float>();
        ASSERT_EQ(s.size(), (n + static_cast<size_t>(block) - 1) / static_cast<size_t>(block));
        const std::vector<uint8_t> c = codes.to_vector<uint8_t>();
        ASSERT_EQ(c.size(), bits == 8 ? n : (n + 1) / 2);
        Tensor back(DS_FLOAT32, {static_cast<int64_t>(n)});
        libds::dequantize(codes, scales, bits, block, back);
        const std::vector<float> y = back.to_vector<float>();
        for (size_t i = 0; i < n; ++i) {
          const double scale = s[i / static_cast<size_t>(block)];
          int code =
              bits == 8 ? static_cast<int8_t>(c[i]) : (i % 2 == 0 ? c[i / 2] >> 4 : c[i / 2] & 15);
          if (bits == 4 && code > 7) code -= 16;
          ASSERT_NEAR(code, x[i] / scale, code == (1 << (bits - 1)) - 1 ? 1.0001 : 0.5001) << i;
          ASSERT_EQ(y[i], static_cast<float>(code) * s[i / static_cast<size_t>(block)]) << i;
        }
        for (size_t b = 0; b < s.size(); ++b) {
          size_t top = b * static_cast<size_t>(block);
          for (size_t i = top; i < std::min(n, top + static_cast<size_t>(block)); ++i) {
            if (std::fabs(x[i]) > std::fabs(x[top])) top = i;
          }
          EXPECT_FLOAT_EQ(y[top], x[top]);
        }
      }
    }
  }
}

TEST(Pieces, QuantisingIsChecked) {
  const Tensor x = Tensor::from(std::vector<float>{1, -2, std::nanf(""), 4});
  const auto [codes, scales] = libds::quantize(x, 8, 2);
  Tensor back(DS_FLOAT32, {4});
  libds::dequantize(codes, scales, 8, 2, back);
  EXPECT_FLOAT_EQ(back.to_vector<float>()[1], -2);
  EXPECT_TRUE(std::isnan(back.to_vector<float>()[3])) << "a block with a NaN is NaN";
  for (const int32_t bits : {0, 2, 16, -8}) {
    EXPECT_THROW(libds::quantize(x, bits, 2), libds::Error) << bits;
  }
  for (const int64_t block : {int64_t{0}, int64_t{3}, int64_t{514}, int64_t{-2}, INT64_MAX}) {
    EXPECT_THROW(libds::quantize(x, 8, block), libds::Error) << block;
  }
  EXPECT_THROW(libds::quantize(Tensor(DS_INT32, {4}), 8, 2), libds::Error);
  Tensor longer(DS_FLOAT32, {5});
  EXPECT_THROW(libds::dequantize(codes, scales, 8, 2, longer), libds::Error);
  EXPECT_THROW(libds::dequantize(scales, codes, 8, 2, back), libds::Error);
}

// Many tensors by one collective: the bits of the single ones, for every type of reduction.
TEST(Coalesced, EqualTheSingleOnesBitForBit) {
  const uint64_t seed = ds::fresh_seed();
  SCOPED_TRACE(ds::str_cat("seed ", seed));
  for (const int32_t world : {1, 3}) {
    run_ranks(world, [&](Comm& comm) {
      const auto rank = static_cast<uint32_t>(comm.rank());
      const int64_t sizes[] = {3, 6, 0, 33};
      for (const ds_reduce_op op : {DS_REDUCE_SUM, DS_REDUCE_AVERAGE, DS_REDUCE_MAX}) {
        std::vector<Tensor> single, many, pieces, whole, wide, narrow;
        std::vector<const Tensor*> list, outputs, inputs, gathered, own;
        for (uint32_t i = 0; i < 4; ++i) {
          const auto n = static_cast<size_t>(sizes[i] * world);
          const std::vector<float> x = random_floats(n, seed + 10 * i + rank);
          single.push_back(Tensor::from(x));
          many.push_back(Tensor::from(x));
          wide.push_back(Tensor::from(x));
          pieces.emplace_back(DS_FLOAT32, std::vector<int64_t>{sizes[i]});
          narrow.push_back(
              Tensor::from(random_floats(static_cast<size_t>(sizes[i]), seed + i + rank)));
          whole.emplace_back(DS_FLOAT32, std::vector<int64_t>{sizes[i] * world});
        }
        for (size_t i = 0; i < 4; ++i) {
          list.push_back(&many[i]);
          outputs.push_back(&pieces[i]);
          inputs.push_back(&wide[i]);
          gathered.push_back(&whole[i]);
          own.push_back(&narrow[i]);
        }
        comm.all_reduce(list, op);
        comm.reduce_scatter(outputs, inputs, op);
        comm.all_gather(gathered, own);
        for (size_t i = 0; i < 4; ++i) {
          Tensor piece(DS_FLOAT32, {sizes[i]}), all(DS_FLOAT32, {sizes[i] * world});
          comm.reduce_scatter(piece, wide[i], op);
          comm.all_gather(all, narrow[i]);
          comm.all_reduce(single[i], op);
          EXPECT_EQ(many[i].to_vector<float>(), single[i].to_vector<float>());
          EXPECT_EQ(pieces[i].to_vector<float>(), piece.to_vector<float>());
          EXPECT_EQ(whole[i].to_vector<float>(), all.to_vector<float>());
        }
      }
    });
  }
}

// Tensors that the ranks do not divide are padded by the caller: what comes back of all pieces is
// what an all-reduce of the tensor alone gives, and zeros behind it. Whole numbers, so all is
// exact.
TEST(Coalesced, PaddedTailsEqualTheTensorsAlone) {
  run_ranks(3, [&](Comm& comm) {
    const int64_t world = comm.size();
    std::vector<Tensor> wide, pieces, whole, alone;
    std::vector<const Tensor*> inputs, outputs, gathered, own;
    for (const int64_t n : {7, 1, 3, 20}) {
      const int64_t piece = (n + world - 1) / world;
      std::vector<float> x(static_cast<size_t>(piece * world), 0.0f);
      for (int64_t i = 0; i < n; ++i) {
        x[static_cast<size_t>(i)] = static_cast<float>(100 * n + 10 * comm.rank() + i);
      }
      wide.push_back(Tensor::from(x));
      pieces.emplace_back(DS_FLOAT32, std::vector<int64_t>{piece});
      whole.emplace_back(DS_FLOAT32, std::vector<int64_t>{piece * world});
      x.resize(static_cast<size_t>(n));
      alone.push_back(Tensor::from(x));
      comm.all_reduce(alone.back(), DS_REDUCE_SUM);
    }
    for (size_t i = 0; i < wide.size(); ++i) {
      inputs.push_back(&wide[i]);
      outputs.push_back(&pieces[i]);
      gathered.push_back(&whole[i]);
      own.push_back(&pieces[i]);
    }
    comm.reduce_scatter(outputs, inputs, DS_REDUCE_SUM);
    comm.all_gather(gathered, own);
    for (size_t i = 0; i < whole.size(); ++i) {
      std::vector<float> expected = alone[i].to_vector<float>();
      expected.resize(static_cast<size_t>(whole[i].elements()), 0.0f);
      EXPECT_EQ(whole[i].to_vector<float>(), expected) << "tensor " << i;
    }
  });
}

TEST(Coalesced, SizesAreChecked) {
  World world;
  ds_tensor* const two[] = {world.tensor, world.ids};
  EXPECT_EQ(ds_comm_all_reduce_coalesced(world.comm, two, 2, DS_REDUCE_SUM),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_comm_all_reduce_coalesced(world.comm, two, 0, DS_REDUCE_SUM),
            DS_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(ds_comm_all_reduce_coalesced(world.comm, two, 1, 77), DS_ERR_INVALID_ARGUMENT);
  ds_tensor* const lists[] = {world.list};
  ds_tensor* const ids[] = {world.ids};
  EXPECT_EQ(ds_comm_all_gather_coalesced(world.comm, lists, ids, 1), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("outputs[0] has 5 elements"));
}

// The numbers of 16 bits of ds.hpp: every pattern there and back, and rounding as the library's
// own.
TEST(Halves, ConvertAsTheLibraryDoes) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    libds::bfloat16 b;
    libds::float16 h;
    b.bits = h.bits = static_cast<uint16_t>(bits);
    const float wide = static_cast<float>(b), half = static_cast<float>(h);
    const float expected = ds::to_float(ds::float16{h.bits});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(half)) << bits;
    } else {
      ASSERT_EQ(half, expected) << bits;
      ASSERT_EQ(libds::float16(half).bits, bits);
    }
    if (!std::isnan(wide)) {
      ASSERT_EQ(libds::bfloat16(wide).bits, bits);
    }
  }
  const uint64_t seed = ds::fresh_seed();
  std::mt19937 random(seed);
  for (int i = 0; i < 2000000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(libds::float16(x))));
      EXPECT_TRUE(std::isnan(static_cast<float>(libds::bfloat16(x))));
      continue;
    }
    ASSERT_EQ(libds::float16(x).bits, ds::to_float16(x).bits) << x << ", seed " << seed;
    ASSERT_EQ(libds::bfloat16(x).bits, ds::to_bfloat16(x).bits) << x << ", seed " << seed;
    const float small =
        std::ldexp(x / std::ldexp(1.0f, std::ilogb(x)), -static_cast<int>(10 + i % 20));
    ASSERT_EQ(libds::float16(small).bits, ds::to_float16(small).bits) << small << ", seed " << seed;
  }
}

// ---- memory ----

struct Pool {
  std::mutex mutex;
  int64_t held = 0, most = 0, calls = 0;
  bool empty = false;
  std::atomic<int> released{0};
};

void* take(void* user_data, int64_t bytes, int64_t alignment, int32_t device_index) {
  auto& pool = *static_cast<Pool*>(user_data);
  EXPECT_EQ(device_index, 0);
  const std::lock_guard lock(pool.mutex);
  if (pool.empty) return nullptr;
  ++pool.calls;
  pool.held += bytes;
  pool.most = std::max(pool.most, pool.held);
  const auto size = (bytes + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(size));
}

void give(void* user_data, void* memory, int64_t bytes, int32_t) {
  auto& pool = *static_cast<Pool*>(user_data);
  const std::lock_guard lock(pool.mutex);
  pool.held -= bytes;
  std::free(memory);
}

TEST(Memory, ComesFromTheCallersAllocator) {
  const auto losses = [](World& world) {
    std::vector<double> out;
    for (int i = 0; i < 3; ++i) {
      ds_step_report report = DS_STEP_REPORT_INIT;
      EXPECT_DS_OK(ds_engine_train_batch(world.engine, &report));
      out.push_back(report.loss);
    }
    return out;
  };
  std::vector<double> expected;
  {
    World world;
    expected = losses(world);
  }
  Pool pool;
  ds_allocator allocator = DS_ALLOCATOR_INIT;
  allocator.user_data = &pool;
  allocator.allocate = take;
  EXPECT_EQ(ds_allocator_set(DS_DEVICE_CPU, &allocator, nullptr), DS_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(ds_last_error_message(), HasSubstr("both"));
  allocator.deallocate = give;
  EXPECT_EQ(ds_allocator_set(7, &allocator, nullptr), DS_ERR_INVALID_ARGUMENT);
  ASSERT_DS_OK(ds_allocator_set(DS_DEVICE_CPU, &allocator,
                                [](void* data) { ++static_cast<Pool*>(data)->released; }));
  {
    World world;
    EXPECT_EQ(losses(world), expected) << "where memory comes from changes no bit";
    EXPECT_GT(pool.most, 100000);
    // What the pool refuses is an error like the system's.
    pool.empty = true;
    const int64_t shape[] = {1 << 20};
    ds_tensor* none = nullptr;
    EXPECT_EQ(ds_tensor_create(DS_FLOAT32, shape, 1, &none), DS_ERR_OUT_OF_MEMORY);
    EXPECT_THAT(ds_last_error_message(), HasSubstr("the program's allocator"));
    pool.empty = false;
    ASSERT_DS_OK(ds_allocator_set(DS_DEVICE_CPU, nullptr, nullptr));
    EXPECT_EQ(pool.released.load(), 0) << "memory of it is still held";
  }
  EXPECT_EQ(pool.held, 0);
  EXPECT_EQ(pool.released.load(), 1);
  const int64_t calls = pool.calls;
  const World after;
  EXPECT_EQ(pool.calls, calls);
}

ds::Json memory_report() {
  char* text = nullptr;
  EXPECT_DS_OK(ds_memory_report(&text));
  const ds::Json report = ds::Json::parse(text);
  ds_string_free(text);
  return report;
}

TEST(Memory, TheReportCountsEveryDevice) {
  const int64_t before = memory_report().at("host").at("total").at("now");
  {
    const Tensor large(DS_FLOAT32, {1 << 20});
    const ds::Json report = memory_report();
    EXPECT_EQ(report.at("host").at("total").at("now").get<int64_t>(), before + (4 << 20));
    EXPECT_GE(report.at("host").at("tags").at("other").at("now").get<int64_t>(), 4 << 20);
    EXPECT_GT(report.at("process").at("resident_bytes").get<int64_t>(), 1 << 20);
    EXPECT_GE(report.at("process").at("peak_resident_bytes").get<int64_t>(),
              report.at("process").at("resident_bytes").get<int64_t>());
    EXPECT_GT(report.at("system").at("total_bytes").get<int64_t>(), 0);
    EXPECT_EQ(report.at("gpus").at("total").at("now").get<int64_t>(), 0);
  }
  EXPECT_EQ(memory_report().at("host").at("total").at("now").get<int64_t>(), before);
}

}  // namespace
}  // namespace capi_test
