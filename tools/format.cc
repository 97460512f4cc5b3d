#include "format.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <vector>

#include "ds.hpp"
#include "failure.h"

namespace tool {
namespace {

// Columns that a UTF-8 text takes, counting each character as one.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string padded(const std::string& text, size_t width) {
  const size_t have = width_of(text);
  return have >= width ? text : text + std::string(width - have, ' ');
}

// Values of a document may hold anything; a terminal must not be steered by them.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

bool is_plain_list(const Json& value) {
  return value.is_array() && std::none_of(value.begin(), value.end(),
                                          [](const Json& item) { return item.is_structured(); });
}

bool is_leaf(const Json& value) { return !value.is_structured() || is_plain_list(value); }

std::string leaf_text(const Json& value) {
  if (value.is_string()) return printable(value.get<std::string>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_null()) return "-";
  if (!value.is_array()) return value.dump();
  std::string out;
  for (const Json& item : value) out += (out.empty() ? "" : ", ") + leaf_text(item);
  return out.empty() ? "none" : out;
}

// A list of objects whose values are all leaves becomes a table.
bool is_table(const Json& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const Json& row) {
           return row.is_object() && std::all_of(row.begin(), row.end(),
                                                 [](const Json& cell) { return is_leaf(cell); });
         });
}

void render_table(const Json& rows, const std::string& indent, std::string& out) {
  std::vector<std::string> columns;
  for (const Json& row : rows) {
    for (const auto& [key, cell] : row.items()) {
      if (std::find(columns.begin(), columns.end(), key) == columns.end()) columns.push_back(key);
    }
  }
  std::vector<std::vector<std::string>> lines;
  lines.emplace_back();
  for (const std::string& column : columns) lines[0].push_back(printable(column));
  for (const Json& row : rows) {
    std::vector<std::string> line;
    for (const std::string& column : columns) {
      line.push_back(row.contains(column) ? leaf_text(row[column]) : "");
    }
    lines.push_back(std::move(line));
  }
  std::vector<size_t> widths(columns.size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], width_of(line[i]));
  }
  for (const auto& line : lines) {
    std::string text = indent;
    for (size_t i = 0; i < line.size(); ++i) {
      text += i + 1 < line.size() ? padded(line[i], widths[i] + 2) : line[i];
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
}

void render(const Json& value, const std::string& indent, std::string& out) {
  if (is_leaf(value)) {
    out += indent + leaf_text(value) + "\n";
  } else if (is_table(value)) {
    render_table(value, indent, out);
  } else if (value.is_array()) {
    for (const Json& item : value) {
      out += indent + "-\n";
      render(item, indent + "  ", out);
    }
  } else {
    size_t width = 0;
    for (const auto& [key, item] : value.items()) {
      if (is_leaf(item)) width = std::max(width, width_of(key));
    }
    for (const auto& [key, item] : value.items()) {
      if (is_leaf(item)) {
        out += indent + padded(printable(key), width + 2) + leaf_text(item) + "\n";
      } else {
        out += indent + printable(key) + (item.empty() ? "  none\n" : "\n");
        if (!item.empty()) render(item, indent + "  ", out);
      }
    }
  }
}

}  // namespace

std::string format(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  va_list again;
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, pattern, arguments);
  va_end(arguments);
  std::string out(static_cast<size_t>(std::max(size, 0)), '\0');
  std::vsnprintf(out.data(), out.size() + 1, pattern, again);
  va_end(again);
  return out;
}

std::string plain_message(const std::exception& error) {
  const std::string text = error.what();
  const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_");
  const bool named =
      text.compare(0, 3, "ds_") == 0 && end != std::string::npos && text.compare(end, 2, ": ") == 0;
  return named ? text.substr(end + 2) : text;
}

std::string format_value(const char* pattern, double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string format_count(double count) {
  static constexpr const char* kUnits[] = {"", " k", " M", " G", " T"};
  size_t unit = 0;
  while (std::abs(count) >= 999.5 && unit + 1 < std::size(kUnits)) {
    count /= 1000;
    ++unit;
  }
  return unit == 0 ? format("%.0f", count) : format("%.3g%s", count, kUnits[unit]);
}

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1023.5 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return format(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
}

std::string format_seconds(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "-";
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  const long long hours = whole / 3600;
  const long long minutes = whole / 60 % 60;
  const long long rest = whole % 60;
  if (hours > 0) return format("%lldh %02lldm", hours, minutes);
  if (minutes > 0) return format("%lldm %02llds", minutes, rest);
  return format("%llds", rest);
}

std::string render_json(const Json& document) {
  std::string out;
  render(document, "", out);
  return out;
}

Json parse_json(const std::string& text, const std::string& what) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw Failure(what + " is not JSON: " + error.what());
  }
}

}  // namespace tool
