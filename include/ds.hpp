// ds.hpp - C++17 on top of ds.h: handles that end themselves, exceptions instead of statuses,
// std::string and std::vector instead of pointers. Header only; it adds nothing to the library's
// ABI, so a program built with it runs with every library that ds.h's version rules allow.
//
// Every class owns one handle, moves and does not copy; get() gives the handle for calls that are
// not wrapped. Objects may be destroyed in any order. The rules of ds.h about threads hold.
// A function that fails throws libds::Error, which carries the ds_status.
#ifndef DS_HPP
#define DS_HPP

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ds.h"

namespace libds {

// ---- Errors ------------------------------------------------------------------------------------

// A failed call: what() is ds_last_error_message(), status() a ds_status_code.
class Error : public std::runtime_error {
 public:
  Error(ds_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  ds_status status() const noexcept { return status_; }
  const char* status_name() const noexcept { return ds_status_name(status_); }

 private:
  ds_status status_;
};

// Throws when `status` is a failure. Use it around calls of ds.h made by hand.
inline void check(ds_status status) {
  if (status < 0) throw Error(status, ds_last_error_message());
}

namespace detail {

// Takes a text that arrived through an out-parameter.
inline std::string take(char* text) {
  const std::unique_ptr<char, decltype(&ds_string_free)> owner(text, &ds_string_free);
  return text == nullptr ? std::string() : std::string(text);
}

// Never NULL, also for an empty view.
inline const char* pointer(std::string_view text) { return text.data() ? text.data() : ""; }

inline const char* or_null(const std::string& text) {
  return text.empty() ? nullptr : text.c_str();
}

// A JSON string literal.
inline std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

template <class T, void (*Destroy)(T*)>
class Handle {
 public:
  Handle() noexcept = default;
  explicit Handle(T* handle) noexcept : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) reset(std::exchange(other.handle_, nullptr));
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { Destroy(handle_); }

  T* get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  // Gives the handle away; the caller ends it.
  T* release() noexcept { return std::exchange(handle_, nullptr); }
  void reset(T* handle = nullptr) noexcept { Destroy(std::exchange(handle_, handle)); }

 private:
  T* handle_ = nullptr;
};

template <class To, class From>
To bits_as(const From& from) noexcept {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace detail

// Numbers of 16 bits: memory of tensors of DS_BFLOAT16 and DS_FLOAT16. They convert from and to
// float, rounding to the nearest, ties to even.
struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(float value) noexcept {
    const auto wide = detail::bits_as<uint32_t>(value);
    const bool nan = (wide & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(nan ? (wide >> 16 | 0x40u)
                                     : (wide + 0x7fffu + (wide >> 16 & 1u)) >> 16);
  }
  explicit operator float() const noexcept {
    return detail::bits_as<float>(static_cast<uint32_t>(bits) << 16);
  }
};
struct float16 {
  uint16_t bits = 0;
  float16() = default;
  explicit float16(float value) noexcept {
    const auto wide = detail::bits_as<uint32_t>(value);
    const uint32_t sign = wide >> 16 & 0x8000u, size = wide & 0x7fffffffu;
    uint32_t out = 0;
    if (size > 0x7f800000u) {
      out = 0x7e00u;  // NaN
    } else if (size >= 0x477ff000u) {
      out = 0x7c00u;  // infinity, and what rounds to it
    } else if (size >= 0x38800000u) {
      out = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    } else {
      // The sum ends at the place of the smallest number: the processor rounds it.
      out = detail::bits_as<uint32_t>(detail::bits_as<float>(size) + 0.5f) - 0x3f000000u;
    }
    bits = static_cast<uint16_t>(sign | out);
  }
  explicit operator float() const noexcept {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size >= 0x7c00u) return detail::bits_as<float>(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    // 2^112 moves the exponent where float has it, also for the numbers below the normal ones.
    const float value = detail::bits_as<float>(size << 13) * 5.192296858534828e33f;
    return detail::bits_as<float>(detail::bits_as<uint32_t>(value) | sign);
  }
};

namespace detail {

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<bfloat16> {
  static constexpr ds_dtype value = DS_BFLOAT16;
};
template <>
struct DtypeOf<float16> {
  static constexpr ds_dtype value = DS_FLOAT16;
};
template <>
struct DtypeOf<float> {
  static constexpr ds_dtype value = DS_FLOAT32;
};
template <>
struct DtypeOf<double> {
  static constexpr ds_dtype value = DS_FLOAT64;
};
template <>
struct DtypeOf<int8_t> {
  static constexpr ds_dtype value = DS_INT8;
};
template <>
struct DtypeOf<int16_t> {
  static constexpr ds_dtype value = DS_INT16;
};
template <>
struct DtypeOf<int32_t> {
  static constexpr ds_dtype value = DS_INT32;
};
template <>
struct DtypeOf<int64_t> {
  static constexpr ds_dtype value = DS_INT64;
};
template <>
struct DtypeOf<uint8_t> {
  static constexpr ds_dtype value = DS_UINT8;
};
template <>
struct DtypeOf<uint16_t> {
  static constexpr ds_dtype value = DS_UINT16;
};
template <>
struct DtypeOf<uint32_t> {
  static constexpr ds_dtype value = DS_UINT32;
};
template <>
struct DtypeOf<uint64_t> {
  static constexpr ds_dtype value = DS_UINT64;
};

}  // namespace detail

// The ds_dtype of a C++ number type.
template <class T>
inline constexpr ds_dtype kDtype = detail::DtypeOf<T>::value;

// ---- Version, log, report ----------------------------------------------------------------------

inline std::string version() { return ds_version(); }
inline int32_t abi_version() noexcept { return ds_abi_version(); }
inline std::string status_name(ds_status status) { return ds_status_name(status); }
// The build and the machine as JSON.
inline std::string report() {
  char* json = nullptr;
  check(ds_report(&json));
  return detail::take(json);
}
// What training would take on each rank of a pretended world, as JSON.
inline std::string plan(const std::string& model_json, const std::string& config_json,
                        const std::string& options_json = "{}") {
  char* json = nullptr;
  check(ds_plan(model_json.c_str(), config_json.c_str(), options_json.c_str(), &json));
  return detail::take(json);
}

// What is wrong with a configuration, and what it resolves to, as JSON.
inline std::string config_check(const std::string& config_json,
                                const std::string& options_json = "{}") {
  char* json = nullptr;
  check(ds_config_check(config_json.c_str(), options_json.c_str(), &json));
  return detail::take(json);
}

// Every key that a configuration may have, as a JSON Schema.
inline std::string config_schema() {
  char* json = nullptr;
  check(ds_config_schema(&json));
  return detail::take(json);
}
// What this process holds, as JSON.
inline std::string memory_report() {
  char* json = nullptr;
  check(ds_memory_report(&json));
  return detail::take(json);
}

// Receives log messages, possibly from several threads at once. It must not call the library;
// exceptions that it throws are dropped.
using LogFunction =
    std::function<void(int32_t level, std::string_view component, std::string_view text)>;

// Sets the process-wide log sink; an empty function restores the default (standard error).
inline void set_log(LogFunction function) {
  if (!function) return check(ds_log_set(nullptr, nullptr, nullptr));
  auto holder = std::make_unique<LogFunction>(std::move(function));
  check(ds_log_set(
      [](void* user_data, int32_t level, const char* component, const char* text) {
        try {
          (*static_cast<LogFunction*>(user_data))(level, component, text);
        } catch (...) {  // a sink must not unwind through C
        }
      },
      holder.get(), [](void* user_data) { delete static_cast<LogFunction*>(user_data); }));
  holder.release();
}
inline void set_log_level(int32_t level) { check(ds_log_set_level(level)); }

// ---- Tensors -----------------------------------------------------------------------------------

class Tensor : public detail::Handle<ds_tensor, ds_tensor_destroy> {
 public:
  using Handle::Handle;

  // Zeros.
  Tensor(ds_dtype dtype, const std::vector<int64_t>& shape) {
    ds_tensor* out = nullptr;
    check(ds_tensor_create(dtype, shape.data(), static_cast<int32_t>(shape.size()), &out));
    reset(out);
  }

  // Zeros in memory that stays in place; see ds_pinned_tensor.
  static Tensor pinned(ds_dtype dtype, const std::vector<int64_t>& shape) {
    ds_tensor* out = nullptr;
    check(ds_pinned_tensor(dtype, shape.data(), static_cast<int32_t>(shape.size()), &out));
    return Tensor(out);
  }
  bool is_pinned() const {
    ds_bool out = 0;
    check(ds_tensor_is_pinned(get(), &out));
    return out != 0;
  }

  // A copy of the caller's numbers; `size` must be the product of `shape`.
  template <class T>
  static Tensor from(const T* values, int64_t size, const std::vector<int64_t>& shape) {
    Tensor tensor(kDtype<T>, shape);
    tensor.write(values, size);
    return tensor;
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const std::vector<int64_t>& shape) {
    return from(values.data(), static_cast<int64_t>(values.size()), shape);
  }
  template <class T>
  static Tensor from(const std::vector<T>& values) {
    return from(values, {static_cast<int64_t>(values.size())});
  }

  // The caller's memory itself, which must live until `release` is called. Empty `strides` means
  // packed. When this throws, `release` is not called.
  static Tensor wrap(void* data, ds_dtype dtype, const std::vector<int64_t>& shape,
                     const std::vector<int64_t>& strides = {}, std::function<void()> release = {}) {
    if (!strides.empty() && strides.size() != shape.size()) {
      throw Error(DS_ERR_INVALID_ARGUMENT, "Tensor::wrap: as many strides as dimensions");
    }
    using Release = std::function<void()>;
    auto holder = release ? std::make_unique<Release>(std::move(release)) : nullptr;
    ds_tensor* out = nullptr;
    check(ds_tensor_from_buffer(data, dtype, shape.data(),
                                strides.empty() ? nullptr : strides.data(),
                                static_cast<int32_t>(shape.size()),
                                holder ? &call_and_delete : nullptr, holder.get(), &out));
    holder.release();
    return Tensor(out);
  }

  // On success the library owns `managed`; when this throws it remains the caller's.
  static Tensor from_dlpack(DLManagedTensorVersioned* managed, void* stream = nullptr) {
    ds_tensor* out = nullptr;
    check(ds_tensor_from_dlpack(managed, stream, &out));
    return Tensor(out);
  }
  static Tensor from_dlpack_legacy(DLManagedTensor* managed, void* stream = nullptr) {
    ds_tensor* out = nullptr;
    check(ds_tensor_from_dlpack_legacy(managed, stream, &out));
    return Tensor(out);
  }
  // The caller calls the deleter of the result once.
  DLManagedTensorVersioned* to_dlpack(void* stream = nullptr) const {
    DLManagedTensorVersioned* out = nullptr;
    check(ds_tensor_to_dlpack(get(), stream, &out));
    return out;
  }
  DLManagedTensor* to_dlpack_legacy(void* stream = nullptr) const {
    DLManagedTensor* out = nullptr;
    check(ds_tensor_to_dlpack_legacy(get(), stream, &out));
    return out;
  }

  // Type, shape, place and address.
  ds_tensor_info info() const {
    ds_tensor_info out = DS_TENSOR_INFO_INIT;
    check(ds_tensor_describe(get(), &out));
    return out;
  }
  ds_dtype dtype() const { return info().dtype; }
  int32_t ndim() const { return info().ndim; }
  ds_device_kind device() const { return info().device_kind; }
  int64_t elements() const { return info().elements; }
  double item() const {
    double out = 0;
    check(ds_tensor_item(get(), &out));
    return out;
  }
  std::vector<int64_t> shape() const {
    const ds_tensor_info of = info();
    return {of.shape, of.shape + of.ndim};
  }
  std::vector<int64_t> strides() const {
    const ds_tensor_info of = info();
    return {of.strides, of.strides + of.ndim};
  }
  int64_t size(int32_t dim) const { return shape().at(static_cast<size_t>(dim)); }
  void* data() const { return info().data; }

  // Copies `size` packed elements of type T; type and size must be the tensor's.
  template <class T>
  void read(T* values, int64_t size) const {
    require_dtype(kDtype<T>);
    check(ds_tensor_read(get(), values, size * static_cast<int64_t>(sizeof(T))));
  }
  template <class T>
  void write(const T* values, int64_t size) {
    require_dtype(kDtype<T>);
    check(ds_tensor_write(get(), values, size * static_cast<int64_t>(sizeof(T))));
  }
  template <class T>
  std::vector<T> to_vector() const {
    std::vector<T> out(static_cast<size_t>(elements()));
    read(out.data(), static_cast<int64_t>(out.size()));
    return out;
  }

 private:
  void require_dtype(ds_dtype wanted) const {
    if (dtype() != wanted) {
      throw Error(DS_ERR_INVALID_ARGUMENT, "the tensor's dtype is " + std::to_string(dtype()) +
                                               ", the caller's numbers are dtype " +
                                               std::to_string(wanted));
    }
  }
  static void call_and_delete(void* user_data) {
    const std::unique_ptr<std::function<void()>> holder(
        static_cast<std::function<void()>*>(user_data));
    try {
      (*holder)();
    } catch (...) {  // may run on any thread, inside the library
    }
  }
};

namespace detail {
inline std::vector<ds_tensor*> handles_of(const std::vector<const Tensor*>& tensors) {
  std::vector<ds_tensor*> out;
  for (const Tensor* const tensor : tensors) out.push_back(tensor->get());
  return out;
}
inline int64_t size_of(const std::vector<ds_tensor*>& list) {
  return static_cast<int64_t>(list.size());
}
}  // namespace detail

// Copies tensors of one type one after another.
inline Tensor flatten(const std::vector<const Tensor*>& tensors) {
  const std::vector<ds_tensor*> handles = detail::handles_of(tensors);
  ds_tensor* out = nullptr;
  check(ds_tensor_flatten(handles.data(), detail::size_of(handles), &out));
  return Tensor(out);
}
// Views of the pieces of a flat tensor in the shapes of others.
inline std::vector<Tensor> unflatten(const Tensor& flat,
                                     const std::vector<const Tensor*>& shapes_like) {
  const std::vector<ds_tensor*> handles = detail::handles_of(shapes_like);
  std::vector<ds_tensor*> views(handles.size());
  check(ds_tensor_unflatten(flat.get(), handles.data(), detail::size_of(handles), views.data()));
  std::vector<Tensor> out;
  for (ds_tensor* const view : views) out.emplace_back(view);
  return out;
}
// Codes of 8 or 4 bits and a scale per block.
inline std::pair<Tensor, Tensor> quantize(const Tensor& tensor, int32_t bits, int64_t block_size) {
  ds_tensor *codes = nullptr, *scales = nullptr;
  check(ds_tensor_quantize(tensor.get(), bits, block_size, &codes, &scales));
  return {Tensor(codes), Tensor(scales)};
}
inline void dequantize(const Tensor& codes, const Tensor& scales, int32_t bits, int64_t block_size,
                       Tensor& output) {
  check(ds_tensor_dequantize(codes.get(), scales.get(), bits, block_size, output.get()));
}
// How numbers become codes by groups: with minima or symmetric, and how they are rounded.
struct GroupFormat {
  int32_t bits = 8;
  int64_t group_size = 128;
  bool asymmetric = false;
  int64_t seed = -1;  // 0 or more: stochastic rounding
};
// Codes of 8 or 4 bits and a scale, or a scale and a minimum, per group.
inline std::pair<Tensor, Tensor> quantize_groups(const Tensor& tensor, const GroupFormat& format) {
  ds_tensor *codes = nullptr, *scales = nullptr;
  check(ds_tensor_quantize_groups(tensor.get(), format.bits, format.group_size, format.asymmetric,
                                  format.seed, &codes, &scales));
  return {Tensor(codes), Tensor(scales)};
}
inline void dequantize_groups(const Tensor& codes, const Tensor& scales, const GroupFormat& format,
                              Tensor& output) {
  check(ds_tensor_dequantize_groups(codes.get(), scales.get(), format.bits, format.group_size,
                                    output.get()));
}
inline Tensor fake_quantize(const Tensor& tensor, const GroupFormat& format) {
  ds_tensor* out = nullptr;
  check(ds_tensor_fake_quantize(tensor.get(), format.bits, format.group_size, format.asymmetric,
                                format.seed, &out));
  return Tensor(out);
}

// Softmax of attention scores; `mask` may be null.
inline Tensor softmax(const Tensor& scores, const Tensor* mask = nullptr, double scale = 1,
                      bool causal = false) {
  ds_tensor* out = nullptr;
  check(ds_tensor_softmax(scores.get(), mask != nullptr ? mask->get() : nullptr, scale, causal,
                          &out));
  return Tensor(out);
}
inline Tensor softmax_backward(const Tensor& softmax, const Tensor& gradient, double scale = 1) {
  ds_tensor* out = nullptr;
  check(ds_tensor_softmax_backward(softmax.get(), gradient.get(), scale, &out));
  return Tensor(out);
}
// Packed projections to heads, with a bias unless null, and back.
inline Tensor split_heads(const Tensor& packed, const Tensor* bias, int32_t parts, int32_t heads) {
  ds_tensor* out = nullptr;
  check(ds_tensor_split_heads(packed.get(), bias != nullptr ? bias->get() : nullptr, parts, heads,
                              &out));
  return Tensor(out);
}
inline Tensor merge_heads(const Tensor& split) {
  ds_tensor* out = nullptr;
  check(ds_tensor_merge_heads(split.get(), &out));
  return Tensor(out);
}

// ---- Experts -----------------------------------------------------------------------------------

// What the gate of a mixture of experts says of every token.
struct Gate {
  Tensor chosen;   // int32 [tokens, top_k]: experts, -1 for none
  Tensor weights;  // float32 [tokens, top_k]
  Tensor counts;   // int64 [3, experts]: chose, taken, counted by the balancing loss
  Tensor losses;   // float32 [2]: balancing loss, z-loss
};
// `bias` may be null; options are JSON, see ds_experts_gate.
inline Gate experts_gate(const Tensor& logits, const std::string& options = "{}",
                         const Tensor* bias = nullptr) {
  ds_tensor *chosen = nullptr, *weights = nullptr, *counts = nullptr, *losses = nullptr;
  check(ds_experts_gate(logits.get(), bias != nullptr ? bias->get() : nullptr, options.c_str(),
                        &chosen, &weights, &counts, &losses));
  return {Tensor(chosen), Tensor(weights), Tensor(counts), Tensor(losses)};
}
// By the gradients of weights and losses; either may be null.
inline Tensor experts_gate_backward(const Tensor& logits, const Gate& gate,
                                    const Tensor* weights_gradient, const Tensor* losses_gradient,
                                    const std::string& options = "{}") {
  const auto handle = [](const Tensor* tensor) {
    return tensor != nullptr ? tensor->get() : nullptr;
  };
  ds_tensor* out = nullptr;
  check(ds_experts_gate_backward(logits.get(), gate.chosen.get(), gate.counts.get(),
                                 options.c_str(), handle(weights_gradient), handle(losses_gradient),
                                 &out));
  return Tensor(out);
}
// Routes sorted by expert.
struct SortedRoutes {
  Tensor offsets;  // int32 [experts + 1]: where the rows of each begin
  Tensor order;    // int32 [rows]: the route of each row
  Tensor places;   // int32 [tokens, choices]: the row of each route, or -1
};
inline SortedRoutes experts_sort(const Tensor& chosen, int64_t experts) {
  ds_tensor *offsets = nullptr, *order = nullptr, *places = nullptr;
  check(ds_experts_sort(chosen.get(), experts, &offsets, &order, &places));
  return {Tensor(offsets), Tensor(order), Tensor(places)};
}
// Tokens to rows and back; weights may be null.
inline Tensor experts_dispatch(const Tensor& tokens, const Tensor& order, int64_t choices,
                               const Tensor* weights = nullptr) {
  ds_tensor* out = nullptr;
  check(ds_experts_dispatch(tokens.get(), order.get(), choices,
                            weights != nullptr ? weights->get() : nullptr, &out));
  return Tensor(out);
}
inline Tensor experts_combine(const Tensor& rows, const Tensor& places,
                              const Tensor* weights = nullptr) {
  ds_tensor* out = nullptr;
  check(ds_experts_combine(rows.get(), places.get(), weights != nullptr ? weights->get() : nullptr,
                           &out));
  return Tensor(out);
}
inline Tensor experts_weights_backward(const Tensor& rows, const Tensor& places,
                                       const Tensor& gradient) {
  ds_tensor* out = nullptr;
  check(ds_experts_weights_backward(rows.get(), places.get(), gradient.get(), &out));
  return Tensor(out);
}

// ---- Communicator ------------------------------------------------------------------------------

// Where processes find each other. An exception thrown here makes the joining fail.
class Store {
 public:
  virtual ~Store() = default;
  virtual void put(const std::string& key, const void* value, int64_t size) = 0;
  // Waits until the key exists or throws.
  virtual std::string get(const std::string& key) = 0;
};

// Reads and writes of files that go on beside the program; see ds_io_create. Any thread may use
// one.
class Io : public detail::Handle<ds_io, ds_io_destroy> {
 public:
  using Handle::Handle;

  explicit Io(const std::string& options_json = "{}") {
    ds_io* out = nullptr;
    check(ds_io_create(options_json.c_str(), &out));
    reset(out);
  }

  ds_io_info info() const {
    ds_io_info out = DS_IO_INFO_INIT;
    check(ds_io_describe(get(), &out));
    return out;
  }

  // A tensor at an offset of a file.
  void read(const std::string& path, const Tensor& tensor, int64_t offset = 0) const {
    run(transfer_of(path, tensor, offset));
  }
  void write(const std::string& path, const Tensor& tensor, int64_t offset = 0) const {
    ds_io_transfer transfer = transfer_of(path, tensor, offset);
    transfer.write = 1;
    run(transfer);
  }
  // A tensor that is all of a file.
  void read_file(const std::string& path, const Tensor& tensor) const {
    ds_io_transfer transfer = transfer_of(path, tensor, 0);
    transfer.whole_file = 1;
    run(transfer);
  }
  void write_file(const std::string& path, const Tensor& tensor) const {
    ds_io_transfer transfer = transfer_of(path, tensor, 0);
    transfer.write = transfer.whole_file = 1;
    run(transfer);
  }
  // They go on beside the program; the memory is free when a wait for the ticket has returned.
  int64_t start_read(const std::string& path, const Tensor& tensor, int64_t offset = 0) const {
    return start(transfer_of(path, tensor, offset));
  }
  int64_t start_write(const std::string& path, const Tensor& tensor, int64_t offset = 0) const {
    ds_io_transfer transfer = transfer_of(path, tensor, offset);
    transfer.write = 1;
    return start(transfer);
  }

  void run(const ds_io_transfer& transfer) const { check(ds_io_run(get(), &transfer)); }
  int64_t start(const ds_io_transfer& transfer) const {
    int64_t ticket = 0;
    check(ds_io_start(get(), &transfer, &ticket));
    return ticket;
  }
  bool done(int64_t ticket) const {
    ds_bool out = 0;
    check(ds_io_test(get(), ticket, &out));
    return out != 0;
  }
  // Of one ticket, or of all; how many have ended.
  int64_t wait(int64_t ticket = 0) const {
    int64_t out = 0;
    check(ds_io_wait(get(), ticket, &out));
    return out;
  }
  // How many were given up.
  int64_t cancel() const {
    int64_t out = 0;
    check(ds_io_cancel(get(), &out));
    return out;
  }

  static ds_io_transfer transfer_of(const std::string& path, const Tensor& tensor, int64_t offset) {
    ds_io_transfer transfer = DS_IO_TRANSFER_INIT;
    transfer.path = path.c_str();
    transfer.tensor = tensor.get();
    transfer.offset = offset;
    return transfer;
  }
};

// Memory that stays in place; see ds_pinned_allocate.
class PinnedMemory {
 public:
  explicit PinnedMemory(int64_t size) : size_(size) {
    void* memory = nullptr;
    check(ds_pinned_allocate(size, &memory));
    memory_.reset(memory);
  }
  void* data() const noexcept { return memory_.get(); }
  int64_t size() const noexcept { return size_; }

  // Whether `size` bytes at an address lie in any such memory, a tensor's too.
  static bool contains(const void* memory, int64_t size) {
    ds_bool out = 0;
    check(ds_pinned_contains(memory, size, &out));
    return out != 0;
  }

 private:
  struct Free {
    void operator()(void* memory) const noexcept { ds_pinned_free(memory, nullptr); }
  };
  std::unique_ptr<void, Free> memory_;
  int64_t size_;
};

// A collective under way; see ds_comm_start about the memory that it uses.
class Work : public detail::Handle<ds_work, ds_work_destroy> {
 public:
  using Handle::Handle;

  bool done() const {
    ds_bool out = 0;
    check(ds_work_test(get(), &out));
    return out != 0;
  }
  // The number of processes that took part.
  int32_t wait() const {
    int32_t out = 0;
    check(ds_work_wait(get(), &out));
    return out;
  }
};

class Comm : public detail::Handle<ds_comm, ds_comm_destroy> {
 public:
  using Handle::Handle;

  // Without numbers: what the launcher put into the environment.
  Comm(int32_t rank = -1, int32_t world_size = -1, const std::string& config_json = "{}",
       Store* store = nullptr) {
    ds_store table = DS_STORE_INIT;
    table.user_data = store;
    table.put = [](void* user_data, const char* key, const void* value, int64_t size) -> ds_status {
      try {
        static_cast<Store*>(user_data)->put(key, value, size);
        return DS_OK;
      } catch (...) {
        return DS_ERR_CALLBACK;
      }
    };
    table.get = [](void* user_data, const char* key, void* value, int64_t capacity,
                   int64_t* out_size) -> ds_status {
      try {
        const std::string found = static_cast<Store*>(user_data)->get(key);
        const auto size = static_cast<int64_t>(found.size());
        found.copy(static_cast<char*>(value),
                   static_cast<size_t>(size < capacity ? size : capacity));
        *out_size = size;
        return DS_OK;
      } catch (...) {
        return DS_ERR_CALLBACK;
      }
    };
    ds_comm* out = nullptr;
    check(ds_comm_create(rank, world_size, config_json.c_str(), store ? &table : nullptr, &out));
    reset(out);
  }

  // Rank, size and where the process is among hosts.
  ds_comm_info info() const {
    ds_comm_info out = DS_COMM_INFO_INIT;
    check(ds_comm_describe(get(), &out));
    return out;
  }
  int32_t rank() const { return info().rank; }
  int32_t size() const { return info().size; }
  void all_reduce(Tensor& tensor, ds_reduce_op op = DS_REDUCE_SUM) {
    check(ds_comm_all_reduce(get(), tensor.get(), op));
  }
  // Many tensors of one type by one collective.
  void all_reduce(const std::vector<const Tensor*>& tensors, ds_reduce_op op = DS_REDUCE_SUM) {
    const std::vector<ds_tensor*> handles = detail::handles_of(tensors);
    check(ds_comm_all_reduce_coalesced(get(), handles.data(), detail::size_of(handles), op));
  }
  void reduce_scatter(const std::vector<const Tensor*>& outputs,
                      const std::vector<const Tensor*>& inputs, ds_reduce_op op = DS_REDUCE_SUM) {
    const std::vector<ds_tensor*> to = detail::handles_of(outputs);
    const std::vector<ds_tensor*> from = detail::handles_of(inputs);
    require_as_many(to, from);
    check(ds_comm_reduce_scatter_coalesced(get(), to.data(), from.data(), detail::size_of(to), op));
  }
  void all_gather(const std::vector<const Tensor*>& outputs,
                  const std::vector<const Tensor*>& inputs) {
    const std::vector<ds_tensor*> to = detail::handles_of(outputs);
    const std::vector<ds_tensor*> from = detail::handles_of(inputs);
    require_as_many(to, from);
    check(ds_comm_all_gather_coalesced(get(), to.data(), from.data(), detail::size_of(to)));
  }
  void reduce_scatter(Tensor& output, const Tensor& input, ds_reduce_op op = DS_REDUCE_SUM) {
    check(ds_comm_reduce_scatter(get(), output.get(), input.get(), op));
  }
  void all_gather(Tensor& output, const Tensor& input) {
    check(ds_comm_all_gather(get(), output.get(), input.get()));
  }
  void all_to_all(Tensor& output, const Tensor& input) {
    check(ds_comm_all_to_all(get(), output.get(), input.get()));
  }
  void broadcast(Tensor& tensor, int32_t root) {
    check(ds_comm_broadcast(get(), tensor.get(), root));
  }
  // struct_size is set here.
  Work start(ds_collective call) {
    call.struct_size = sizeof call;
    ds_work* out = nullptr;
    check(ds_comm_start(get(), &call, &out));
    return Work(out);
  }
  Work start_all_reduce(Tensor& tensor, ds_reduce_op op = DS_REDUCE_SUM) {
    ds_collective call = DS_COLLECTIVE_INIT;
    call.kind = DS_COLLECTIVE_ALL_REDUCE;
    call.op = op;
    call.output = tensor.get();
    return start(call);
  }
  Work send(const Tensor& tensor, int32_t peer, int32_t tag = 0) {
    ds_collective call = DS_COLLECTIVE_INIT;
    call.kind = DS_COLLECTIVE_SEND;
    call.input = tensor.get();
    call.root = peer;
    call.tag = tag;
    return start(call);
  }
  Work recv(Tensor& tensor, int32_t peer, int32_t tag = 0) {
    ds_collective call = DS_COLLECTIVE_INIT;
    call.kind = DS_COLLECTIVE_RECV;
    call.output = tensor.get();
    call.root = peer;
    call.tag = tag;
    return start(call);
  }
  // Memory that collectives use without a copy.
  Tensor shared_tensor(ds_dtype dtype, const std::vector<int64_t>& shape) {
    ds_tensor* out = nullptr;
    check(ds_comm_shared_tensor(get(), dtype, shape.data(), static_cast<int32_t>(shape.size()),
                                &out));
    return Tensor(out);
  }
  // Empty for a negative color.
  Comm split(int32_t color, int32_t key = 0) {
    ds_comm* out = nullptr;
    check(ds_comm_split(get(), color, key, &out));
    return Comm(out);
  }
  void join() { check(ds_comm_join(get())); }
  std::string report() const {
    char* out = nullptr;
    check(ds_comm_report(get(), &out));
    return detail::take(out);
  }
  void barrier() { check(ds_comm_barrier(get())); }
  void finalize() { check(ds_comm_finalize(get())); }
  void abort() { check(ds_comm_abort(get())); }

 private:
  static void require_as_many(const std::vector<ds_tensor*>& a, const std::vector<ds_tensor*>& b) {
    if (a.size() != b.size()) {
      throw Error(DS_ERR_INVALID_ARGUMENT, "Comm: as many outputs as inputs are needed");
    }
  }
};

// ---- Tokenizers --------------------------------------------------------------------------------

class Tokenizer : public detail::Handle<ds_tokenizer, ds_tokenizer_destroy> {
 public:
  using Handle::Handle;

  static Tokenizer bytes() {
    ds_tokenizer* out = nullptr;
    check(ds_tokenizer_create_bytes(&out));
    return Tokenizer(out);
  }
  static Tokenizer open(const std::string& path) {
    ds_tokenizer* out = nullptr;
    check(ds_tokenizer_open(path.c_str(), &out));
    return Tokenizer(out);
  }
  static Tokenizer from_json(std::string_view json) {
    ds_tokenizer* out = nullptr;
    check(ds_tokenizer_from_json(detail::pointer(json), static_cast<int64_t>(json.size()), &out));
    return Tokenizer(out);
  }
  // `options_json` as in ds_tokenizer_train; "" for its defaults.
  static Tokenizer train(std::string_view text, const std::string& options_json = "") {
    ds_tokenizer* out = nullptr;
    check(ds_tokenizer_train(detail::pointer(text), static_cast<int64_t>(text.size()),
                             detail::or_null(options_json), &out));
    return Tokenizer(out);
  }

  // Token ids as an int32 tensor, ready to be a prompt.
  Tensor encode(std::string_view text, bool add_special = false) const {
    ds_tensor* out = nullptr;
    check(ds_tokenizer_encode(get(), detail::pointer(text), static_cast<int64_t>(text.size()),
                              add_special, &out));
    return Tensor(out);
  }
  std::string decode(const Tensor& ids, bool skip_special = false) const {
    char* out = nullptr;
    check(ds_tokenizer_decode(get(), ids.get(), skip_special, &out));
    return detail::take(out);
  }
  std::string decode(const std::vector<int32_t>& ids, bool skip_special = false) const {
    return decode(Tensor::from(ids), skip_special);
  }
  ds_tokenizer_info info() const {
    ds_tokenizer_info out = DS_TOKENIZER_INFO_INIT;
    check(ds_tokenizer_describe(get(), &out));
    return out;
  }
  int64_t vocab_size() const { return info().vocab_size; }
  std::optional<int32_t> end_of_text() const {
    const int32_t id = info().end_of_text;
    return id < 0 ? std::nullopt : std::optional<int32_t>(id);
  }
  int32_t token_to_id(const std::string& token) const {
    int32_t out = 0;
    check(ds_tokenizer_token_to_id(get(), token.c_str(), &out));
    return out;
  }
  std::string id_to_token(int32_t id) const {
    char* out = nullptr;
    check(ds_tokenizer_id_to_token(get(), id, &out));
    return detail::take(out);
  }
  std::string to_json() const {
    char* out = nullptr;
    check(ds_tokenizer_to_json(get(), &out));
    return detail::take(out);
  }
};

// ---- Data sets ---------------------------------------------------------------------------------

// What ds_dataset_open takes as JSON.
struct DatasetSpec {
  std::string path;
  int64_t sequence_length = 0;
  int64_t samples = 0;  // 0 = one epoch
  std::string split = "969,30,1";
  std::string part = "train";
  int64_t seed = 1234;

  std::string to_json() const {
    return "{\"path\": " + detail::quote(path) +
           ", \"sequence_length\": " + std::to_string(sequence_length) +
           ", \"samples\": " + std::to_string(samples) + ", \"split\": " + detail::quote(split) +
           ", \"part\": " + detail::quote(part) + ", \"seed\": " + std::to_string(seed) + "}";
  }
};

class Dataset : public detail::Handle<ds_dataset, ds_dataset_destroy> {
 public:
  using Handle::Handle;

  static Dataset open(const std::string& spec_json, const Tokenizer* tokenizer = nullptr) {
    ds_dataset* out = nullptr;
    check(ds_dataset_open(spec_json.c_str(), tokenizer ? tokenizer->get() : nullptr, &out));
    return Dataset(out);
  }
  static Dataset open(const DatasetSpec& spec, const Tokenizer* tokenizer = nullptr) {
    return open(spec.to_json(), tokenizer);
  }
  // Tokenises a file into PREFIX.bin and PREFIX.idx.
  static void build(const std::string& input, const Tokenizer& tokenizer, bool append_end,
                    const std::string& output_prefix) {
    check(ds_dataset_build(input.c_str(), tokenizer.get(), append_end, output_prefix.c_str()));
  }

  // Writes the documents of several prefixes one after another into PREFIX.bin and PREFIX.idx.
  static void merge(const std::vector<std::string>& inputs, const std::string& output_prefix) {
    std::string list;
    for (const std::string& input : inputs)
      list += (list.empty() ? "" : ", ") + detail::quote(input);
    check(ds_dataset_merge(("[" + list + "]").c_str(), output_prefix.c_str()));
  }

  ds_dataset_info info() const {
    ds_dataset_info out = DS_DATASET_INFO_INIT;
    check(ds_dataset_describe(get(), &out));
    return out;
  }
  int64_t size() const { return info().samples; }
  int64_t sequence_length() const { return info().sequence_length; }
  Tensor sample(int64_t index) const {
    ds_tensor* out = nullptr;
    check(ds_dataset_sample(get(), index, &out));
    return Tensor(out);
  }
  // "ids", "labels", "segments", "token_types", "sentence_order" or "mask" of one sample.
  Tensor field(int64_t index, const std::string& name) const {
    ds_tensor* out = nullptr;
    check(ds_dataset_field(get(), index, name.c_str(), &out));
    return Tensor(out);
  }
};

// ---- Models ------------------------------------------------------------------------------------

struct GenerateOptions {
  int64_t max_tokens = 64;
  double temperature = 0;  // 0 = always the likeliest token
  int64_t top_k = 0;       // 0 = all
  double top_p = 0;        // 0 = all
  int64_t seed = 0;
  std::optional<int32_t> stop_token;
  bool graphs = true;  // on a GPU: launch the work of a token as one CUDA graph
};

// Receives each new token; false stops the text, and generate() throws DS_ERR_CALLBACK.
using TokenFunction = std::function<bool(int32_t token)>;

// One parameter of a program that computes its own gradients.
struct Parameter {
  std::string name = {};
  std::vector<int64_t> shape = {};  // that of `value` when there is one
  const Tensor* value = nullptr;    // first value
  std::string group = {};
  std::string alias = {};
  ds_dtype dtype = 0;  // 0 = that of `value`, else float32
  bool lend = false;   // `value` receives every new value
  bool frozen = false;
  bool decays = true;
  std::optional<int64_t> expert = std::nullopt;
};

class Model : public detail::Handle<ds_model, ds_model_destroy> {
 public:
  using Handle::Handle;

  // Fresh weights.
  static Model create(const std::string& config_json, int64_t seed) {
    ds_model* out = nullptr;
    check(ds_model_create(config_json.c_str(), seed, &out));
    return Model(out);
  }
  // Weights of a Hugging Face folder or a checkpoint; `options_json` as in ds_model_open.
  static Model open(const std::string& folder, const std::string& options_json = "") {
    ds_model* out = nullptr;
    check(ds_model_open(folder.c_str(), detail::or_null(options_json), &out));
    return Model(out);
  }
  // A second model of the same weights, to generate from while an engine trains this one on.
  Model copy() const {
    ds_model* out = nullptr;
    check(ds_model_copy(get(), &out));
    return Model(out);
  }
  // The caller's own parameters, without a forward pass.
  static Model from_parameters(const std::vector<Parameter>& parameters) {
    std::vector<ds_parameter> plain;
    for (const Parameter& p : parameters) {
      ds_parameter out = DS_PARAMETER_INIT;
      out.name = p.name.c_str();
      const bool own_shape = !p.value || !p.shape.empty();
      out.shape = own_shape ? p.shape.data() : nullptr;
      out.ndim = own_shape ? static_cast<int32_t>(p.shape.size()) : 0;
      out.value = p.value ? p.value->get() : nullptr;
      out.group = detail::or_null(p.group);
      out.alias = detail::or_null(p.alias);
      out.dtype = p.dtype;
      out.lend = p.lend;
      out.frozen = p.frozen;
      out.no_decay = !p.decays;
      out.has_expert = p.expert.has_value();
      out.expert = p.expert.value_or(0);
      plain.push_back(out);
    }
    ds_model* out = nullptr;
    check(ds_model_create_from_parameters(plain.data(), static_cast<int64_t>(plain.size()), &out));
    return Model(out);
  }
  // `max_shard_bytes` 0: one file.
  void export_to(const std::string& folder, ds_dtype dtype = DS_FLOAT32,
                 int64_t max_shard_bytes = 0) {
    check(ds_model_export(get(), folder.c_str(), dtype, max_shard_bytes));
  }
  // A checkpoint of the weights alone.
  void save(const std::string& folder, const std::string& tag = "") {
    check(ds_model_save(get(), folder.c_str(), detail::or_null(tag)));
  }

  // "cpu" or a GPU such as "cuda:0"; see ds_model_set_device.
  void set_device(const std::string& device) { check(ds_model_set_device(get(), device.c_str())); }
  // A cudaStream_t that the work on the GPU is ordered with, or null; see ds_model_set_stream.
  void set_stream(void* stream) { check(ds_model_set_stream(get(), stream)); }
  // Where the weights are, in the same words.
  std::string device() const {
    const ds_model_info of = info();
    return of.device_kind == DS_DEVICE_CUDA ? "cuda:" + std::to_string(of.device_index) : "cpu";
  }

  // `pattern` of names: * is any text, ? one character.
  void set_trainable(const std::string& pattern, bool trainable) {
    check(ds_model_set_trainable(get(), pattern.c_str(), trainable));
  }
  // `options_json` as in ds_model_add_lora.
  void add_lora(const std::string& options_json) {
    check(ds_model_add_lora(get(), options_json.c_str()));
  }
  void merge_lora() { check(ds_model_merge_lora(get())); }
  void save_adapter(const std::string& folder, ds_dtype dtype = DS_FLOAT32) {
    check(ds_model_save_adapter(get(), folder.c_str(), dtype));
  }
  void load_adapter(const std::string& folder) {
    check(ds_model_load_adapter(get(), folder.c_str()));
  }

  std::string config() const {
    char* out = nullptr;
    check(ds_model_config(get(), &out));
    return detail::take(out);
  }
  // Sizes and place.
  ds_model_info info() const {
    ds_model_info out = DS_MODEL_INFO_INIT;
    check(ds_model_describe(get(), &out));
    return out;
  }
  // Parameters are numbered in the model's order; index() finds the number of a name.
  int64_t index(const std::string& name) const {
    int64_t out = 0;
    check(ds_model_parameter_index(get(), name.c_str(), &out));
    return out;
  }
  std::string parameter_name(int64_t parameter) const {
    char* out = nullptr;
    check(ds_model_parameter_name(get(), parameter, &out));
    return detail::take(out);
  }
  std::vector<std::string> parameter_names() const {
    const int64_t count = info().parameters;
    std::vector<std::string> names;
    for (int64_t i = 0; i < count; ++i) names.push_back(parameter_name(i));
    return names;
  }
  ds_parameter_info parameter_info(int64_t parameter) const {
    ds_parameter_info out = DS_PARAMETER_INFO_INIT;
    check(ds_model_parameter_describe(get(), parameter, &out));
    return out;
  }
  // All of them as a JSON list.
  std::string parameters() const {
    char* out = nullptr;
    check(ds_model_parameters(get(), &out));
    return detail::take(out);
  }
  // A float32 copy.
  Tensor parameter(int64_t parameter) const {
    ds_tensor* out = nullptr;
    check(ds_model_get_parameter(get(), parameter, &out));
    return Tensor(out);
  }
  Tensor parameter(const std::string& name) const { return parameter(index(name)); }
  void set_parameter(int64_t parameter, const Tensor& value) {
    check(ds_model_set_parameter(get(), parameter, value.get()));
  }
  void set_parameter(const std::string& name, const Tensor& value) {
    set_parameter(index(name), value);
  }
  // The memory that the model computes with; see ds_model_view_parameter.
  Tensor view(int64_t parameter) {
    ds_tensor* out = nullptr;
    check(ds_model_view_parameter(get(), parameter, &out));
    return Tensor(out);
  }
  Tensor view(const std::string& name) { return view(index(name)); }
};

// ---- Generators --------------------------------------------------------------------------------

// Sequences that go through a model together; see ds_batch.
struct Batch {
  const Tensor* ids = nullptr;
  const Tensor* labels = nullptr;
  const Tensor* attention_mask = nullptr;
  const Tensor* segments = nullptr;
  const Tensor* token_types = nullptr;

  ds_batch plain() const {
    const auto handle = [](const Tensor* tensor) { return tensor ? tensor->get() : nullptr; };
    ds_batch out = DS_BATCH_INIT;
    out.ids = handle(ids);
    out.labels = handle(labels);
    out.attention_mask = handle(attention_mask);
    out.segments = handle(segments);
    out.token_types = handle(token_types);
    return out;
  }
};

// Runs a model without training it.
class Generator : public detail::Handle<ds_generator, ds_generator_destroy> {
 public:
  using Handle::Handle;

  // "" as options: the model's own weights; else as in ds_generator_create.
  explicit Generator(const Model& model, const std::string& options_json = "") {
    ds_generator* out = nullptr;
    check(ds_generator_create(model.get(), detail::or_null(options_json), &out));
    reset(out);
  }

  // Form and size of the weights.
  ds_generator_info info() const {
    ds_generator_info out = DS_GENERATOR_INFO_INIT;
    check(ds_generator_describe(get(), &out));
    return out;
  }
  // A float32 copy of a parameter as products see it.
  Tensor parameter(int64_t parameter) const {
    ds_tensor* out = nullptr;
    check(ds_generator_get_parameter(get(), parameter, &out));
    return Tensor(out);
  }

  // New token ids, without the prompt. An exception thrown by `on_token` stops the text and
  // arrives here.
  std::vector<int32_t> generate(const Tensor& prompt, const GenerateOptions& options = {},
                                const TokenFunction& on_token = {}) {
    ds_generate_options plain = DS_GENERATE_OPTIONS_INIT;
    plain.max_tokens = options.max_tokens;
    plain.temperature = options.temperature;
    plain.top_k = options.top_k;
    plain.top_p = options.top_p;
    plain.seed = options.seed;
    plain.stop_token = options.stop_token.value_or(0);
    plain.has_stop_token = options.stop_token.has_value();
    plain.no_graphs = !options.graphs;

    struct Context {
      const TokenFunction* function;
      std::exception_ptr thrown;
    } context{&on_token, nullptr};
    const ds_token_fn trampoline = [](void* user_data, int32_t token) -> int32_t {
      auto& self = *static_cast<Context*>(user_data);
      try {
        return (*self.function)(token) ? 0 : 1;
      } catch (...) {
        self.thrown = std::current_exception();
        return 1;
      }
    };
    ds_tensor* out = nullptr;
    const ds_status status = ds_generator_generate(get(), prompt.get(), &plain,
                                                   on_token ? trampoline : nullptr, &context, &out);
    if (context.thrown) std::rethrow_exception(context.thrown);
    check(status);
    return Tensor(out).to_vector<int32_t>();
  }

  // From any thread: ends the generation that runs.
  void interrupt() { check(ds_generator_interrupt(get())); }

  // float32 [batch, length, vocabulary].
  Tensor logits(const Batch& batch) {
    const ds_batch plain = batch.plain();
    ds_tensor* out = nullptr;
    check(ds_generator_logits(get(), &plain, &out));
    return Tensor(out);
  }
  Tensor logits(const Tensor& ids) { return logits(Batch{&ids}); }
  // float32 [batch, length, width].
  Tensor hidden_states(const Batch& batch) {
    const ds_batch plain = batch.plain();
    ds_tensor* out = nullptr;
    check(ds_generator_hidden_states(get(), &plain, &out));
    return Tensor(out);
  }
  Tensor hidden_states(const Tensor& ids) { return hidden_states(Batch{&ids}); }
};

// ---- Engine and optimizer ----------------------------------------------------------------------

// The optimizer of an engine; its calls fail once the engine has ended.
class Optimizer : public detail::Handle<ds_optimizer, ds_optimizer_destroy> {
 public:
  using Handle::Handle;

  ds_optimizer_info info() const {
    ds_optimizer_info out = DS_OPTIMIZER_INFO_INIT;
    check(ds_optimizer_describe(get(), &out));
    return out;
  }
  // Updates applied so far.
  int64_t steps() const { return info().steps; }
  double lr() const { return info().lr; }
  void set_lr(double lr) { check(ds_optimizer_set_lr(get(), lr)); }
  // Rates of the next step, the default group's first.
  std::vector<double> rates() const {
    std::vector<double> out(static_cast<size_t>(info().rate_count));
    for (size_t i = 0; i < out.size(); ++i) {
      check(ds_optimizer_rate(get(), static_cast<int64_t>(i), &out[i]));
    }
    return out;
  }
  // Names of a parameter's state tensors, as a JSON list.
  std::string state_names(int64_t parameter) const {
    char* out = nullptr;
    check(ds_optimizer_state_names(get(), parameter, &out));
    return detail::take(out);
  }
};

// Parameters of an engine made whole until the scope ends; see ds_engine_open_scope.
class Scope : public detail::Handle<ds_scope, ds_scope_destroy> {
 public:
  using Handle::Handle;

  // That of position `position` in the list that opened the scope.
  Tensor tensor(int64_t position) const {
    ds_tensor* out = nullptr;
    check(ds_scope_tensor(get(), position, &out));
    return Tensor(out);
  }
  void commit(int32_t modifier_rank) { check(ds_scope_commit(get(), modifier_rank)); }
  void close() { check(ds_scope_close(get())); }
};

using StepReport = ds_step_report;

class Engine : public detail::Handle<ds_engine, ds_engine_destroy> {
 public:
  using Handle::Handle;

  // `config_json` is a DeepSpeed configuration (docs/configuration.md), `options_json` as in
  // ds_engine_create.
  Engine(const std::string& config_json, Model& model, Comm* comm = nullptr,
         const std::string& options_json = "") {
    ds_engine* out = nullptr;
    check(ds_engine_create(config_json.c_str(), detail::or_null(options_json), model.get(),
                           comm ? comm->get() : nullptr, &out));
    reset(out);
  }
  // The configuration is a file's.
  static Engine from_file(const std::string& path, Model& model, Comm* comm = nullptr,
                          const std::string& options_json = "") {
    ds_engine* out = nullptr;
    check(ds_engine_create_from_file(path.c_str(), detail::or_null(options_json), model.get(),
                                     comm ? comm->get() : nullptr, &out));
    return Engine(out);
  }

  // The loss of one micro batch.
  Tensor forward(const Batch& batch) {
    const ds_batch plain = batch.plain();
    ds_tensor* out = nullptr;
    check(ds_engine_forward(get(), &plain, &out));
    return Tensor(out);
  }
  Tensor forward(const Tensor& ids, const Tensor& labels) { return forward(Batch{&ids, &labels}); }
  void backward(const Tensor& loss) { check(ds_engine_backward(get(), loss.get())); }
  StepReport step() {
    StepReport report = DS_STEP_REPORT_INIT;
    check(ds_engine_step(get(), &report));
    return report;
  }

  void set_dataset(const Dataset* dataset) {
    check(ds_engine_set_dataset(get(), dataset ? dataset->get() : nullptr));
  }
  StepReport train_batch() {
    StepReport report = DS_STEP_REPORT_INIT;
    check(ds_engine_train_batch(get(), &report));
    return report;
  }
  // Mean loss; `max_batches` 0 = the whole data set.
  double evaluate(const Dataset& dataset, int64_t max_batches = 0) {
    double out = 0;
    check(ds_engine_evaluate(get(), dataset.get(), max_batches, &out));
    return out;
  }

  // Hears the parts of train_batch, evaluate, save and load; false ends the call (DS_ERR_CALLBACK).
  // It must not throw.
  using Progress = std::function<bool(const char* call, int64_t done, int64_t total)>;
  void set_progress(Progress progress) {
    if (!progress) {
      check(ds_engine_set_progress(get(), nullptr, nullptr, nullptr));
      return;
    }
    auto kept = std::make_unique<Progress>(std::move(progress));
    check(ds_engine_set_progress(
        get(),
        [](void* user_data, const char* call, int64_t done, int64_t total) -> int32_t {
          return (*static_cast<Progress*>(user_data))(call, done, total) ? 0 : 1;
        },
        kept.get(), [](void* user_data) { delete static_cast<Progress*>(user_data); }));
    (void)kept.release();  // the library's now
  }
  // From any thread: ends the call that runs in this engine.
  void interrupt() { check(ds_engine_interrupt(get())); }

  // "" as a tag: "global_step<N>" when saving, the newest valid one when loading.
  void save(const std::string& folder, const std::string& tag = "") {
    check(ds_engine_save(get(), folder.c_str(), detail::or_null(tag)));
  }
  void save_wait() { check(ds_engine_save_wait(get())); }
  // `options_json` as in ds_engine_load: how much of it.
  void load(const std::string& folder, const std::string& tag = "",
            const std::string& options_json = "") {
    check(
        ds_engine_load(get(), folder.c_str(), detail::or_null(tag), detail::or_null(options_json)));
  }
  void set_tokenizer(const Tokenizer* tokenizer) {
    check(ds_engine_set_tokenizer(get(), tokenizer ? tokenizer->get() : nullptr));
  }
  // "" takes the document away.
  void set_client_state(const std::string& json) {
    check(ds_engine_set_client_state(get(), detail::or_null(json)));
  }
  std::string client_state() const {
    char* out = nullptr;
    check(ds_engine_client_state(get(), &out));
    return detail::take(out);
  }

  // Bytes that checkpoints carry, by name; "" takes them away.
  void set_blob(const std::string& name, std::string_view bytes) {
    check(ds_engine_set_blob(get(), name.c_str(), bytes.empty() ? nullptr : bytes.data(),
                             static_cast<int64_t>(bytes.size())));
  }
  std::string blob(const std::string& name) const {
    ds_tensor* out = nullptr;
    check(ds_engine_blob(get(), name.c_str(), &out));
    const std::vector<uint8_t> bytes = Tensor(out).to_vector<uint8_t>();
    return {bytes.begin(), bytes.end()};
  }
  // Names and sizes, as a JSON object.
  std::string blobs() const {
    char* out = nullptr;
    check(ds_engine_blobs(get(), &out));
    return detail::take(out);
  }

  // The configuration as resolved, with the origin of each value.
  std::string config() const {
    char* out = nullptr;
    check(ds_engine_config(get(), &out));
    return detail::take(out);
  }
  std::string memory_report() const {
    char* out = nullptr;
    check(ds_engine_memory_report(get(), &out));
    return detail::take(out);
  }
  // Arithmetic and time per module of the step that flops_profiler asked for; "null" before it.
  std::string profile() const {
    char* out = nullptr;
    check(ds_engine_profile(get(), &out));
    return detail::take(out);
  }
  // Loads and losses of the last step's experts; "null" where the model has none.
  std::string experts() const {
    char* out = nullptr;
    check(ds_engine_experts(get(), &out));
    return detail::take(out);
  }
  // Counters, batch sizes and the loss scale.
  ds_engine_info info() const {
    ds_engine_info out = DS_ENGINE_INFO_INIT;
    check(ds_engine_describe(get(), &out));
    return out;
  }
  int64_t global_step() const { return info().step; }
  int64_t samples() const { return info().samples; }
  double loss_scale() const { return info().loss_scale; }

  // The caller's own gradients, which carry loss_scale(), of the parameters 0, 1, ...
  void add_gradients(const std::vector<Tensor>& gradients) { add(nullptr, gradients); }
  // ... or of these.
  void add_gradients(const std::vector<int64_t>& parameters, const std::vector<Tensor>& gradients) {
    if (parameters.size() != gradients.size()) {
      throw Error(DS_ERR_INVALID_ARGUMENT, "Engine: as many gradients as parameters are needed");
    }
    add(parameters.data(), gradients);
  }
  void add_gradient(int64_t parameter, const Tensor& gradient) {
    ds_tensor* const handle = gradient.get();
    check(ds_engine_add_gradients(get(), &parameter, &handle, 1));
  }
  // The memory that a gradient gathers in.
  Tensor view_gradient(int64_t parameter) {
    ds_tensor* out = nullptr;
    check(ds_engine_view_gradient(get(), parameter, &out));
    return Tensor(out);
  }
  // What the loss of the open micro batch was, for reports.
  void set_loss(double loss) { check(ds_engine_set_loss(get(), loss)); }
  void discard_gradients() { check(ds_engine_discard_gradients(get())); }
  // Whether the next steps update; nothing: as gradient_accumulation_steps says.
  void set_boundary(std::optional<bool> boundary) {
    check(ds_engine_set_boundary(get(), boundary ? int32_t{*boundary} : -1));
  }
  // Parameters whole until the scope ends, to compute with or to change; none: all of them.
  Scope open_scope(ds_scope_mode mode, const std::vector<int64_t>& parameters) {
    ds_scope* out = nullptr;
    check(ds_engine_open_scope(get(), parameters.data(), static_cast<int64_t>(parameters.size()),
                               mode, &out));
    return Scope(out);
  }
  // Values of a parameter as float32; `state` names one of Optimizer::state_names().
  Tensor values(int64_t parameter, ds_value_kind kind, const std::string& state = "",
                ds_extent extent = DS_EXTENT_WHOLE) const {
    ds_tensor* out = nullptr;
    check(ds_engine_get_values(get(), parameter, kind, detail::or_null(state), extent, &out));
    return Tensor(out);
  }
  void set_values(int64_t parameter, ds_value_kind kind, const Tensor& value,
                  const std::string& state = "", ds_extent extent = DS_EXTENT_WHOLE) {
    check(
        ds_engine_set_values(get(), parameter, kind, detail::or_null(state), extent, value.get()));
  }
  Tensor gradient(int64_t parameter) const { return values(parameter, DS_VALUE_GRADIENT); }
  // First element and number of elements of this process's part.
  std::pair<int64_t, int64_t> local_range(int64_t parameter) const {
    int64_t first = 0, count = 0;
    check(ds_engine_local_range(get(), parameter, &first, &count));
    return {first, count};
  }
  // Takes part in the steps of processes that have more batches.
  void join() { check(ds_engine_join(get())); }
  Optimizer optimizer() const {
    ds_optimizer* out = nullptr;
    check(ds_engine_optimizer(get(), &out));
    return Optimizer(out);
  }

 private:
  void add(const int64_t* parameters, const std::vector<Tensor>& gradients) {
    std::vector<ds_tensor*> handles;
    for (const Tensor& gradient : gradients) handles.push_back(gradient.get());
    check(ds_engine_add_gradients(get(), parameters, handles.data(), detail::size_of(handles)));
  }
};

// ---- Checkpoints on disk -----------------------------------------------------------------------

// Describes a checkpoint as JSON; "" as a tag means the newest valid one.
inline std::string inspect_checkpoint(const std::string& folder, const std::string& tag = "") {
  char* out = nullptr;
  check(ds_checkpoint_inspect(folder.c_str(), detail::or_null(tag), &out));
  return detail::take(out);
}
// Deletes one checkpoint; `latest` moves to another one first where it names this.
inline void delete_checkpoint(const std::string& folder, const std::string& tag) {
  check(ds_checkpoint_delete(folder.c_str(), tag.c_str()));
}
// Reads every byte and throws when one is wrong.
inline void verify_checkpoint(const std::string& folder, const std::string& tag = "") {
  check(ds_checkpoint_verify(folder.c_str(), detail::or_null(tag)));
}

}  // namespace libds

#endif  // DS_HPP
