#include "capi/args.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/text.h"

namespace ds::capi {
namespace {

constexpr int64_t kMinStructSize = 16;  // struct_size and at least one member

}  // namespace

std::string_view text_param(const char* text, const char* parameter) {
  DS_CHECK(text != nullptr, Code::kInvalidArgument, parameter, " is NULL");
  return text;
}

std::string_view utf8_param(const char* text, const char* parameter) {
  const std::string_view view = text_param(text, parameter);
  DS_CHECK(is_valid_utf8(view), Code::kInvalidArgument, parameter,
           " is not UTF-8: ", printable(view));
  return view;
}

std::string path_param(const char* text, const char* parameter) {
  const std::string_view view = text_param(text, parameter);
  DS_CHECK(!view.empty(), Code::kInvalidArgument, parameter, " is empty; a path is needed");
  return std::string(view);
}

std::string_view sized_text_param(const char* text, int64_t size, const char* parameter,
                                  const char* size_parameter) {
  DS_CHECK(size >= -1, Code::kInvalidArgument, size_parameter, " is ", size,
           "; bytes, or -1 for text that ends with NUL, are needed");
  if (size == 0) return {};
  DS_CHECK(text != nullptr, Code::kInvalidArgument, parameter, " is NULL");
  return size < 0 ? std::string_view(text) : std::string_view(text, static_cast<size_t>(size));
}

char* make_c_string(std::string_view text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

int64_t checked_struct_size(const void* pointer, const char* parameter) {
  DS_CHECK(pointer != nullptr, Code::kInvalidArgument, parameter, " is NULL");
  int64_t size;
  std::memcpy(&size, pointer, sizeof(size));
  DS_CHECK(size >= kMinStructSize && size <= kMaxStructSize && size % 4 == 0,
           Code::kInvalidArgument, parameter, ": struct_size is ", size,
           "; set it to sizeof the struct");
  return size;
}

void read_struct(const void* given, const char* parameter, void* out, int64_t known_size) {
  const int64_t size = checked_struct_size(given, parameter);
  std::memcpy(out, given, static_cast<size_t>(std::min(size, known_size)));
  const auto* const bytes = static_cast<const unsigned char*>(given);
  for (int64_t i = known_size; i < size; ++i) {
    DS_CHECK(bytes[i] == 0, Code::kUnsupported, parameter, ": byte ", i, " of ", size,
             " is set, but this version of the library knows ", known_size,
             " bytes; use a newer library or leave newer members zero");
  }
}

void write_struct(void* given, const char* parameter, const void* value, int64_t known_size) {
  const int64_t size = checked_struct_size(given, parameter);
  auto* const bytes = static_cast<unsigned char*>(given);
  constexpr size_t kSkip = sizeof(int64_t);  // struct_size stays the caller's
  const auto both = static_cast<size_t>(std::min(size, known_size));
  std::memcpy(bytes + kSkip, static_cast<const unsigned char*>(value) + kSkip, both - kSkip);
  if (size > known_size) std::memset(bytes + known_size, 0, static_cast<size_t>(size - known_size));
}

void check_index(int64_t index, int64_t count, const char* parameter, const char* things) {
  DS_CHECK(index >= 0 && index < count, Code::kInvalidArgument, parameter, " is ", index,
           "; there are ", count, " ", things);
}

}  // namespace ds::capi
