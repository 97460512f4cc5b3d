// Runs a fuzz target over files and folders given as arguments, without libFuzzer: how ordinary
// builds replay the committed inputs. The name of a file is printed before it runs, so that a
// crash says which one it was.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/fuzz_support.h"

namespace {

namespace fs = std::filesystem;

bool run_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in.good() && !in.eof()) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    return false;
  }
  std::printf("%s\n", path.c_str());
  std::fflush(stdout);
  // Exactly as long as the input, so that a sanitizer sees the first byte read beyond it.
  std::vector<uint8_t> bytes(content.begin(), content.end());
  bytes.shrink_to_fit();
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    const fs::path path = argv[i];
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  if (files.empty()) {
    std::fprintf(stderr, "usage: %s FILE_OR_FOLDER...: no inputs to replay\n", argv[0]);
    return 2;
  }
  std::sort(files.begin(), files.end());
  // The empty input is the first that any fuzzer tries.
  const uint8_t nothing = 0;
  LLVMFuzzerTestOneInput(&nothing, 0);
  const auto start = std::chrono::steady_clock::now();
  for (const fs::path& file : files) {
    if (!run_file(file)) return 1;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%zu inputs in %.2f s, none a finding\n", files.size(), took.count());
  return 0;
}
