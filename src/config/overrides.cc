#include "config/overrides.h"

#include <charconv>

#include "base/text.h"
#include "config/parse.h"

namespace ds {
namespace {

std::vector<std::string> names_of(const std::string& path) {
  std::vector<std::string> out;
  const bool pointer = !path.empty() && path[0] == '/';
  std::string_view rest = path;
  if (pointer) rest.remove_prefix(1);
  while (true) {
    const size_t end = rest.find(pointer ? '/' : '.');
    const std::string_view token = rest.substr(0, end);
    out.push_back(pointer ? unescape_pointer_token(token) : std::string(token));
    if (end == std::string_view::npos) return out;
    rest.remove_prefix(end + 1);
  }
}

// The name under which the object holds the key, or the canonical one.
std::string spelling_in(const Json& object, const Key& key) {
  for (const std::string& alias : key.aliases) {
    if (object.contains(alias)) return alias;
  }
  return key.name;
}

const KeyTable* table_below(const Key* key) {
  return key != nullptr && !key->free_names ? key->table.get() : nullptr;
}

// The item that the name numbers, if there is one.
Json* item_of(Json& list, const std::string& name) {
  size_t index = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data(), end, index);
  return error == std::errc() && at == end && index < list.size() ? &list[index] : nullptr;
}

}  // namespace

std::set<std::string> apply_overrides(Json& document, const KeyTable& root,
                                      const std::vector<std::pair<std::string, Json>>& values,
                                      std::vector<ConfigProblem>& problems) {
  std::set<std::string> out;
  for (const auto& [path, value] : values) {
    Json* here = &document;
    const KeyTable* table = &root;
    std::string canonical;
    for (const std::string& name : names_of(path)) {
      // An absent or unset section on the way is made.
      if (here->is_null()) *here = Json::object();
      if (here->is_array()) {
        here = item_of(*here, name);
        canonical += "/" + pointer_token(name);
        table = nullptr;
      } else if (here->is_object()) {
        const Key* key = table == nullptr ? nullptr : table->find(name);
        const std::string spelling = key == nullptr ? name : spelling_in(*here, *key);
        canonical += "/" + pointer_token(key == nullptr ? name : key->name);
        here = &(*here)[spelling];
        table = table_below(key);
      } else {
        here = nullptr;
      }
      if (here == nullptr) break;
    }
    if (here == nullptr) {
      problems.push_back(make_problem(
          ProblemKind::kError, printable(path, 200),
          "cannot be set: the document has no object there; set the section as a whole"));
      continue;
    }
    *here = value;
    out.insert(canonical);
  }
  return out;
}

}  // namespace ds
