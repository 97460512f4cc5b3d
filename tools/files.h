// Files and standard input as text.
#pragma once

#include <string>
#include <string_view>

namespace tool {

bool file_exists(const std::string& path);  // a regular file, or something like /dev/stdin
bool folder_exists(const std::string& path);

// The whole file, or standard input for "-". Throws Failure naming the path.
std::string read_text(const std::string& path);
void write_text(const std::string& path, std::string_view text);

// Makes a folder and its parents now, so that a run does not fail only when it saves.
void make_folder(const std::string& path);

}  // namespace tool
