// The protobuf wire format, as far as the small messages of monitors need it: written by hand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ds::protobuf {

// Appends the low `bytes` bytes of `value`, least significant first.
void put_fixed(std::string* out, uint64_t value, int bytes);

// Fields: number and value.
void put_integer(std::string* out, int field, int64_t value);
void put_double(std::string* out, int field, double value);
void put_float(std::string* out, int field, float value);
void put_bytes(std::string* out, int field, std::string_view bytes);  // text and messages

}  // namespace ds::protobuf

namespace ds {

double wall_time_now();   // seconds since 1970
std::string host_name();  // fit for a file name

}  // namespace ds
