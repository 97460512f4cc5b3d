#include "metrics_cut.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "command.h"
#include "files.h"
#include "format.h"

namespace tool {
namespace {

namespace fs = std::filesystem;

// Lines that are not of this program stay.
bool is_after(std::string_view line, int64_t step) {
  const Json document = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || !document.contains("step")) return false;
  const Json& at = document["step"];
  return at.is_number_integer() && at.get<int64_t>() > step;
}

// On disk before it takes the name of the old file.
void replace_file(const fs::path& path, const std::string& text) {
  const std::string next = path.string() + ".tmp." + std::to_string(::getpid());
  try {
    write_text(next, text);
    fs::permissions(next, fs::status(path).permissions());
    const int file = ::open(next.c_str(), O_RDONLY | O_CLOEXEC);
    const bool synced = file >= 0 && ::fsync(file) == 0;
    if (file >= 0) ::close(file);
    if (!synced || std::rename(next.c_str(), path.c_str()) != 0) {
      throw Failure("cannot rewrite the metrics file " + path.string() + ": " +
                    std::strerror(errno));
    }
  } catch (...) {
    ::unlink(next.c_str());
    throw;
  }
}

}  // namespace

void cut_metrics(const std::string& path, int64_t step) {
  std::error_code error;
  if (path.empty() || !fs::is_regular_file(path, error)) return;
  const std::string text = read_text(path);
  std::string kept;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    const std::string_view line = std::string_view(text).substr(at, end + 1 - at);
    if (!is_after(line, step)) kept += line;
    at = end + 1;
  }
  if (kept.size() != text.size()) replace_file(fs::canonical(path), kept);
}

}  // namespace tool
