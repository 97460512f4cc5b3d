// A checksum of a model's weights, to tell whether two runs have the same bits.
#pragma once

#include <cstring>
#include <ds.hpp>
#include <sstream>
#include <string>

namespace bench {

// FNV-1a over the bits of all weights.
inline std::string checksum(const libds::Model& model) {
  uint64_t sum = 0xCBF29CE484222325u;
  for (const std::string& name : model.parameter_names()) {
    for (const float value : model.parameter(name).to_vector<float>()) {
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      sum = (sum ^ bits) * 0x100000001B3u;
    }
  }
  std::ostringstream text;
  text << std::hex << sum;
  return text.str();
}

}  // namespace bench
