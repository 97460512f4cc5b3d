// Numbers, times and JSON documents as text for people.
#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <string>

namespace tool {

using Json = nlohmann::ordered_json;

// printf into a string.
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

// A number in the pattern, or "nan" or "inf" without the sign that means nothing.
std::string format_value(const char* pattern, double value);
std::string format_count(double count);      // "1.24 M"
std::string format_bytes(double bytes);      // "1.2 GiB"
std::string format_seconds(double seconds);  // "1h 02m", "3m 20s", "12s"

// The text of a failure without the name of the library's function that it begins with: who uses
// the program did not call it.
std::string plain_message(const std::exception& error);

// A document as indented lines: objects as aligned "key  value", lists of like objects as tables.
std::string render_json(const Json& document);

// Parses a document that the library made or the user wrote; Failure names `what`.
Json parse_json(const std::string& text, const std::string& what);

}  // namespace tool
