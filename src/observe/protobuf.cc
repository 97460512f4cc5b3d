#include "observe/protobuf.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>

namespace ds::protobuf {
namespace {

constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;  // wire types

void put_varint(std::string* out, uint64_t value) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

void put_key(std::string* out, int field, int wire) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
}

}  // namespace

void put_fixed(std::string* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

void put_integer(std::string* out, int field, int64_t value) {
  put_key(out, field, kVarint);
  put_varint(out, static_cast<uint64_t>(value));
}

void put_double(std::string* out, int field, double value) {
  put_key(out, field, kFixed64);
  put_fixed(out, std::bit_cast<uint64_t>(value), 8);
}

void put_float(std::string* out, int field, float value) {
  put_key(out, field, kFixed32);
  put_fixed(out, std::bit_cast<uint32_t>(value), 4);
}

void put_bytes(std::string* out, int field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out->append(bytes);
}

}  // namespace ds::protobuf

namespace ds {

double wall_time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  std::string out(name.data());
  for (char& c : out) {
    if (c == '/') c = '_';
  }
  return out;
}

}  // namespace ds
