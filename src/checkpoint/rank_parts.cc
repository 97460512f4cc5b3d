#include "checkpoint/rank_parts.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <span>
#include <thread>

#include "base/file.h"
#include "base/text.h"

namespace ds {
namespace {

namespace fs = std::filesystem;

// A file is "open" from the start of the save. Renaming it needs no room on the disk, so that a
// failure can be told when there is none.
constexpr const char* kOpen = "open";
constexpr const char* kDone = "done";
constexpr const char* kFailed = "failed";
constexpr int64_t kMostText = int64_t{1} << 30;

fs::path message_file(const fs::path& folder, int rank, const char* state) {
  std::array<char, 40> name;
  std::snprintf(name.data(), name.size(), "part-%05d.%s", rank, state);
  return folder / name.data();
}

}  // namespace

bool is_handover_file(std::string_view name) {
  const size_t dot = name.find('.');
  if (name.rfind("part-", 0) != 0 || dot == std::string_view::npos || dot == 5) return false;
  const std::string_view number = name.substr(5, dot - 5), state = name.substr(dot + 1);
  return std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
         (state == kOpen || state == kDone || state == kFailed);
}

PartHandover::PartHandover(fs::path folder, int rank) : folder_(std::move(folder)), rank_(rank) {
  File file(message_file(folder_, rank_, kOpen), File::Mode::kNew);
  file.close();
}

void PartHandover::publish(std::string_view text, const char* as) const {
  const fs::path open = message_file(folder_, rank_, kOpen);
  std::ofstream file(open, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  DS_CHECK(file.good() || as == kFailed, Code::kIo, "cannot write ", printable(open.string(), 300));
  fs::rename(open, message_file(folder_, rank_, as));
}

void PartHandover::finish(PartWriter& part) const {
  try {
    publish(encode_manifest(part.finish()), kDone);
  } catch (const std::exception& error) {
    try {
      publish(error.what(), kFailed);
    } catch (const std::exception&) {
      // Rank 0 has given up and removed the folder.
    }
    throw;
  }
}

std::vector<Manifest> take_parts(const fs::path& folder, int world,
                                 const std::function<bool()>& given_up) {
  std::vector<Manifest> parts;
  while (static_cast<int>(parts.size()) + 1 < world) {
    for (int rank = static_cast<int>(parts.size()) + 1; rank < world; ++rank) {
      const fs::path failed = message_file(folder, rank, kFailed);
      DS_CHECK(!fs::exists(failed), Code::kIo, "rank ", rank,
               " could not write its part: ", printable(read_text_file(failed, kMostText), 2000));
    }
    const int next = static_cast<int>(parts.size()) + 1;
    const fs::path done = message_file(folder, next, kDone);
    if (fs::exists(done)) {
      const std::string text = read_text_file(done, kMostText);
      parts.push_back(
          decode_manifest(std::as_bytes(std::span(text)), str_cat("the part of rank ", next)));
      fs::remove(done);
      continue;
    }
    DS_CHECK(!given_up(), Code::kComm, "rank ", next,
             " has not written its part: its group failed, or it takes longer than the ",
             "deadline of its collectives");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return parts;
}

}  // namespace ds
