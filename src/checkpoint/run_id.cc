#include "checkpoint/run_id.h"

#include <unistd.h>

#include <array>
#include <random>

namespace ds {
namespace {

// The system's random numbers; where it gives none, those of the standard library.
void fill_random(std::array<unsigned char, 16>& bytes) {
  if (::getentropy(bytes.data(), bytes.size()) == 0) return;
  std::random_device device;
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(device());
}

}  // namespace

std::string make_run_id() {
  std::array<unsigned char, 16> bytes{};
  fill_random(bytes);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace ds
