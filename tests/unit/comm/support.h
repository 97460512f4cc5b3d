// Ranks as threads, the transports that tests run over, and fresh random inputs.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/factory.h"
#include "unit/comm/memory_store.h"

namespace ds::testing {

using CommPtr = std::shared_ptr<Communicator>;
using World = std::vector<CommPtr>;

// Calls body(communicator) for each rank: on threads, or, where ranks are processes, for the one of
// this process. What they throw comes back by rank ("": nothing), everywhere.
struct Outcome {
  Code code = Code::kOk;
  std::string text;
};
std::vector<Outcome> run_ranks(const World& world, const std::function<void(Communicator&)>& body);

inline void expect_ok(const std::vector<Outcome>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].code, Code::kOk) << "rank " << rank << ": " << outcomes[rank].text;
  }
}

inline const std::shared_ptr<Device>& cpu() {
  static const std::shared_ptr<Device> device = make_cpu_device();
  return device;
}

inline Tensor make_tensor(DType dtype, int64_t elements) {
  return Tensor::zeros(cpu(), dtype, Shape{elements}, MemoryTag::kCommunication);
}

// Elements of one type that follow from a seed, and their arithmetic in plain loops.
inline std::vector<std::byte> random_bytes(DType dtype, int64_t elements, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(elements * dtype_size(dtype)));
  const auto number = [](std::mt19937_64& from) {  // in [-8, 8)
    return static_cast<float>(static_cast<int32_t>(from() >> 32)) * 0x1p-28f;
  };
  const auto put = [&](int64_t i, const auto& value) {
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(value), &value, sizeof(value));
  };
  for (int64_t i = 0; i < elements; ++i) {
    switch (dtype) {
      case DType::kFloat32:
        put(i, number(random));
        break;
      case DType::kFloat64:
        put(i, static_cast<double>(number(random)) / 3);
        break;
      case DType::kBFloat16:
        put(i, to_bfloat16(number(random)));
        break;
      case DType::kFloat16:
        put(i, to_float16(number(random)));
        break;
      case DType::kBool:
        put(i, static_cast<uint8_t>(random() & 1));
        break;
      default: {
        const uint64_t value = random();
        std::memcpy(bytes.data() + i * dtype_size(dtype), &value,
                    static_cast<size_t>(dtype_size(dtype)));
      }
    }
  }
  return bytes;
}

namespace detail {

template <class T>
T reduce_one(std::span<const T> values, ReduceOp op, int divisor) {
  if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
    float wide[8] = {};
    for (size_t i = 0; i < values.size(); ++i) wide[i] = to_float(values[i]);
    return from_float<T>(reduce_one<float>({wide, values.size()}, op, divisor));
  } else {
    T result = values.empty() ? T{} : values[0];
    for (size_t i = 1; i < values.size(); ++i) {
      const T value = values[i];
      if (op == ReduceOp::kMin) {
        result = value < result ? value : result;
      } else if (op == ReduceOp::kMax) {
        result = value > result ? value : result;
      } else if constexpr (std::is_floating_point_v<T>) {
        result = result + value;
      } else {
        result = static_cast<T>(static_cast<uint64_t>(result) + static_cast<uint64_t>(value));
      }
    }
    if constexpr (std::is_floating_point_v<T>) {
      if (op == ReduceOp::kAverage) result = result / static_cast<T>(divisor);
    }
    return result;
  }
}

template <class T>
std::vector<std::byte> reduce_typed(const std::vector<std::vector<std::byte>>& inputs, ReduceOp op,
                                    int divisor) {
  std::vector<std::byte> result(inputs.empty() ? 0 : inputs[0].size());
  for (size_t at = 0; at < result.size(); at += sizeof(T)) {
    T values[8] = {};  // tests have few ranks
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::memcpy(&values[i], inputs[i].data() + at, sizeof(T));
    }
    const T sum = reduce_one<T>({values, inputs.size()}, op, divisor);
    std::memcpy(result.data() + at, &sum, sizeof(T));
  }
  return result;
}

}  // namespace detail

// In order of ranks, in fp32 (float64 in float64), rounded once: what the interface promises.
inline std::vector<std::byte> reduced(DType dtype,
                                      const std::vector<std::vector<std::byte>>& inputs,
                                      ReduceOp op, int divisor) {
  const auto as = [&]<class T>(T) { return detail::reduce_typed<T>(inputs, op, divisor); };
  switch (dtype) {
    case DType::kFloat32:
      return as(float{});
    case DType::kFloat64:
      return as(double{});
    case DType::kBFloat16:
      return as(bfloat16{});
    case DType::kFloat16:
      return as(float16{});
    case DType::kInt8:
      return as(int8_t{});
    case DType::kInt16:
      return as(int16_t{});
    case DType::kInt32:
      return as(int32_t{});
    case DType::kInt64:
      return as(int64_t{});
    case DType::kUInt8:
      return as(uint8_t{});
    case DType::kUInt16:
      return as(uint16_t{});
    case DType::kUInt32:
      return as(uint32_t{});
    default:
      return as(uint64_t{});
  }
}

inline void put(const Tensor& tensor, const std::vector<std::byte>& bytes) {
  if (!bytes.empty()) std::memcpy(tensor.raw(), bytes.data(), bytes.size());
}
inline bool equal_bytes(const Tensor& tensor, const std::vector<std::byte>& bytes) {
  return tensor.bytes() == static_cast<int64_t>(bytes.size()) &&
         (bytes.empty() || std::memcmp(tensor.raw(), bytes.data(), bytes.size()) == 0);
}

// What a call throws.
inline Outcome outcome_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.message()};
  } catch (const std::exception& error) {
    return {Code::kInternal, error.what()};
  }
  return {};
}

// A transport to test: makes a world of ranks. Those of other processes are null.
struct Maker {
  const char* name;
  std::function<World(int size, const CommOptions&)> make;
};
// Ranks that meet in a store of this process and otherwise behave like processes.
inline World meet(int size, const CommOptions& options) {
  const StorePtr store = make_memory_store();
  World world(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        world[static_cast<size_t>(rank)] = make_communicator(rank, size, options, store);
      } catch (const Error& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return world;
}

inline Maker maker_of(const char* name, TransportKind kind) {
  return {name, [kind](int size, CommOptions options) {
            options.transport = kind;
            options.host_address = "127.0.0.1";
            return meet(size, options);
          }};
}

// Those of the program: ranks as threads, or the processes that mpirun has started.
std::vector<Maker> makers();
std::vector<int> world_sizes();
inline void PrintTo(const Maker& maker, std::ostream* out) { *out << maker.name; }
inline std::string maker_name(const ::testing::TestParamInfo<Maker>& info) {
  return info.param.name;
}

inline CommOptions quick_options(int deadline_ms = 20000) {
  CommOptions options;
  options.deadline = std::chrono::milliseconds(deadline_ms);
  return options;
}

}  // namespace ds::testing
