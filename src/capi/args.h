// Checks of plain arguments: out-parameters, texts, sizes, versioned structs; and text handed out.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ds::capi {

// The out-parameter, which must not be NULL. Bind it before making anything that it shall own: in
// `out_param(p, name) = make()` the right side is evaluated first and would be lost.
template <class T>
T& out_param(T* pointer, const char* parameter) {
  DS_CHECK(pointer != nullptr, Code::kInvalidArgument, parameter, " is NULL");
  return *pointer;
}

// Text that ends with NUL and must be given.
std::string_view text_param(const char* text, const char* parameter);
// The same, when it must also be UTF-8 (names, documents).
std::string_view utf8_param(const char* text, const char* parameter);
// A path: given, and not empty.
std::string path_param(const char* text, const char* parameter);
// Bytes with a length, or with a NUL at the end when `size` is -1.
std::string_view sized_text_param(const char* text, int64_t size, const char* parameter,
                                  const char* size_parameter);

// A copy for the caller, who frees it with ds_string_free.
char* make_c_string(std::string_view text);

// Structs begin with struct_size, sizeof of the caller's header, and only grow at the end.
inline constexpr int64_t kMaxStructSize = 4096;
int64_t checked_struct_size(const void* pointer, const char* parameter);
// Copies what caller and library both know; what only a newer caller knows must be zero.
void read_struct(const void* given, const char* parameter, void* out, int64_t known_size);
// Writes what both know, keeps the caller's struct_size, and zeroes what only the caller knows.
void write_struct(void* given, const char* parameter, const void* value, int64_t known_size);

// An input struct; members that an older caller does not have are zero, the default.
template <class T>
T struct_param(const T* given, const char* parameter) {
  T out{};
  read_struct(given, parameter, &out, static_cast<int64_t>(sizeof(T)));
  out.struct_size = static_cast<int64_t>(sizeof(T));
  return out;
}

// Fills a struct of the caller, which has set struct_size, and leaves that as it is.
template <class T>
void give_struct(const T& value, T* given, const char* parameter) {
  write_struct(given, parameter, &value, static_cast<int64_t>(sizeof(T)));
}

// An index into `count` things of a kind.
void check_index(int64_t index, int64_t count, const char* parameter, const char* things);

}  // namespace ds::capi
