#include "checkpoint/run_id.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <random>

namespace ds {
namespace {

// The system's random numbers; where it gives none, those of the standard library.
void fill_random(std::array<unsigned char, 16>& bytes) {
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t n = ::getrandom(bytes.data() + got, bytes.size() - got, 0);
    if (n > 0) {
      got += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      break;
    }
  }
  if (got == bytes.size()) return;
  std::random_device device;
  for (; got < bytes.size(); ++got) bytes[got] = static_cast<unsigned char>(device());
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
