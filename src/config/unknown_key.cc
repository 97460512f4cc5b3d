#include "config/unknown_key.h"

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "config/parse.h"

namespace ds {
namespace {

// True when the key, given here, would be accepted and do something.
bool is_useful(const KeyTable& table, const Key& key) {
  if (key.deprecated || !key.lacking.empty()) return false;
  const Key* gate = table.gate.empty() ? nullptr : table.find(table.gate);
  return gate == nullptr || gate->lacking.empty() || !gate->harmless.empty();
}

// Paths where a key called `name` would be accepted, user-chosen names shown as <name>.
void find_elsewhere(const KeyTable& table, std::string_view name, const std::string& path,
                    std::set<std::string>& found) {
  for (const Key& key : table.keys) {
    const std::string here = path + "/" + pointer_token(key.name);
    if (key.name == name && is_useful(table, key)) {
      found.insert(key.instead.empty() ? here : key.instead);
    }
    if (!key.lacking.empty()) continue;
    if (key.table)
      find_elsewhere(*key.table, name, here + (key.free_names ? "/<name>" : ""), found);
    for (const auto& [value, variant] : key.variants) find_elsewhere(*variant, name, here, found);
  }
}

}  // namespace

bool is_comment_key(std::string_view name) {
  return !name.empty() && (name[0] == '_' || name[0] == '#' || name.substr(0, 2) == "//");
}

UnknownKey explain_unknown_key(const KeyTable& root, const KeyTable& table, const std::string& path,
                               const std::string& name) {
  std::vector<std::string> names;
  for (const Key& key : table.keys) {
    if (key.deprecated) continue;
    names.push_back(key.name);
    names.insert(names.end(), key.aliases.begin(), key.aliases.end());
  }
  std::sort(names.begin(), names.end());
  const std::string here = "the keys here are " + join(names, ", ");
  const std::string place = path + "/" + pointer_token(name);
  std::set<std::string> elsewhere;
  find_elsewhere(root, name, "", elsewhere);
  // The same place under another value of the sibling that chooses the table.
  if (elsewhere.count(place)) return {"unknown key for this type; " + here, {place}};
  if (!elsewhere.empty() && elsewhere.size() <= 3) {
    const std::vector<std::string> places(elsewhere.begin(), elsewhere.end());
    return {"unknown key; it belongs at " + join(places, " or "), std::move(elsewhere)};
  }
  if (const std::string near = nearest_name(name, names); !near.empty()) {
    UnknownKey out{"unknown key; did you mean \"" + near + "\"?", {}};
    // A name that merely resembles another may be invented.
    if (edit_distance(name, near) <= std::max<int>(2, static_cast<int>(name.size() / 5))) {
      out.meant.insert(path + "/" + pointer_token(table.find(near)->name));
    }
    return out;
  }
  if (names.empty()) return {"unknown key; no key is allowed here", {}};
  if (names.size() <= 16) return {"unknown key; " + here, {}};
  return {"unknown key, and no key here is similar", {}};
}

}  // namespace ds
