#include "run_description.h"

#include <cstdio>
#include <filesystem>
#include <iostream>

#include "ds.hpp"
#include "failure.h"
#include "files.h"

namespace tool {

std::string description_path(const std::string& metrics) {
  const std::filesystem::path path(metrics);
  const std::filesystem::path stem = path.extension() == ".jsonl" ? path.stem() : path.filename();
  return (path.parent_path() / (stem.string() + ".run.json")).string();
}

void write_run_description(const std::string& metrics, const Json& description) {
  const std::string path = description_path(metrics);
  const std::string unfinished = path + ".tmp";
  try {
    write_text(unfinished, description.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    std::error_code error;
    std::filesystem::rename(unfinished, path, error);
    if (error) throw Failure("cannot write " + path + ": " + error.message());
  } catch (const Failure& failure) {
    std::remove(unfinished.c_str());
    std::cerr << "ds: warning: the run's description is not kept: " << failure.what()
              << "; training goes on\n";
  }
}

std::string utc_text(std::time_t time) {
  std::tm parts{};
  if (::gmtime_r(&time, &parts) == nullptr) return {};
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace tool
