#include "config/key_table.h"

#include <algorithm>
#include <string_view>

#include "base/text.h"

namespace ds {
namespace {

std::vector<std::string> split_spellings(std::string_view spellings) {
  std::vector<std::string> out;
  while (true) {
    const size_t bar = spellings.find('|');
    out.emplace_back(spellings.substr(0, bar));
    if (bar == std::string_view::npos) return out;
    spellings.remove_prefix(bar + 1);
  }
}

Key make(const char* name, unsigned types, Json value, const char* description) {
  Key key;
  key.name = name;
  key.types = types | (value.is_null() ? unsigned{kNull} : 0u);
  key.default_value = std::move(value);
  key.description = description;
  return key;
}

template <class T>
Json or_unset(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

Key Key::also(std::initializer_list<const char*> other_names) && {
  aliases.assign(other_names.begin(), other_names.end());
  return std::move(*this);
}
Key Key::must_be_given() && {
  required = true;
  types &= ~unsigned{kNull};
  return std::move(*this);
}
Key Key::must_be_given_when_on() && {
  required_when_on = true;
  return std::move(*this);
}
Key Key::at_least(double bound) && {
  min = bound;
  return std::move(*this);
}
Key Key::at_most(double bound) && {
  max = bound;
  return std::move(*this);
}
Key Key::above(double bound) && {
  min = bound;
  above_min = true;
  return std::move(*this);
}
Key Key::below(double bound) && {
  max = bound;
  below_max = true;
  return std::move(*this);
}
Key Key::even() && {
  multiple_of = 2;
  return std::move(*this);
}
Key Key::or_null() && {
  types |= kNull;
  return std::move(*this);
}
Key Key::or_word(const char* word) && {
  types = (types | kString) & ~unsigned{kNull};
  choices.push_back({word});
  default_value = word;
  return std::move(*this);
}
Key Key::or_list_of(Key item_key) && {
  types |= kList;
  item = std::make_shared<const Key>(std::move(item_key));
  return std::move(*this);
}
Key Key::or_numeric_text() && {
  numeric_text = true;
  return std::move(*this);
}
Key Key::in_any_case() && {
  any_case = true;
  return std::move(*this);
}
Key Key::items(size_t least, size_t most) && {
  min_items = least;
  max_items = most;
  return std::move(*this);
}
Key Key::without_repeats() && {
  unique = true;
  return std::move(*this);
}
Key Key::or_one_string() && {
  string_is_list = true;
  return std::move(*this);
}
Key Key::or_bool_for(const char* key) && {
  bool_sets = key;
  return std::move(*this);
}
Key Key::replaced_by(const char* path, Json value_of_true) && {
  deprecated = true;
  forward = path;
  forward_true = std::move(value_of_true);
  return std::move(*this);
}
Key Key::retired(const char* what_instead) && {
  deprecated = true;
  replacement = what_instead;
  return std::move(*this);
}
Key Key::needs(const char* feature, std::vector<Json> other_accepted_values) && {
  lacking = feature;
  harmless = std::move(other_accepted_values);
  return std::move(*this);
}
Key Key::always() && {
  refused_always = true;
  return std::move(*this);
}
Key Key::decided_by_caller() && {
  caller_decides = true;
  return std::move(*this);
}
Key Key::rather(const char* path) && {
  instead = path;
  return std::move(*this);
}

KeyTable KeyTable::gated_by(const char* key, bool always) && {
  gate = key;
  gate_always = always;
  return std::move(*this);
}
KeyTable KeyTable::accepts_auto() && {
  auto_is_default = true;
  return std::move(*this);
}
KeyTable KeyTable::accepts_other_keys() && {
  other_keys = true;
  return std::move(*this);
}
KeyTable KeyTable::ignores_other_keys() && {
  ignores_unknown = true;
  return std::move(*this);
}

const Key* KeyTable::find(std::string_view name) const {
  for (const Key& key : keys) {
    if (key.name == name) return &key;
    if (std::find(key.aliases.begin(), key.aliases.end(), name) != key.aliases.end()) return &key;
  }
  return nullptr;
}

namespace keys {

KeyTable table(const char* description, std::vector<Key> rows) {
  KeyTable out;
  out.description = description;
  out.keys = std::move(rows);
  return out;
}

Key flag(const char* name, std::optional<bool> value, const char* description) {
  return make(name, kBool, or_unset(value), description);
}
Key integer(const char* name, std::optional<int64_t> value, const char* description) {
  return make(name, kInt, or_unset(value), description);
}
Key number(const char* name, std::optional<double> value, const char* description) {
  return make(name, kNumber, or_unset(value), description);
}
Key text(const char* name, std::optional<const char*> value, const char* description) {
  return make(name, kString, or_unset(value), description);
}
Key choice(const char* name, std::initializer_list<const char*> choices,
           std::optional<const char*> value, const char* description) {
  Key key = make(name, kString, or_unset(value), description);
  for (const char* spellings : choices) key.choices.push_back(split_spellings(spellings));
  return key;
}
Key list(const char* name, Key item, const char* value, const char* description) {
  Key key = make(name, kList, Json::parse(value), description);
  key.item = std::make_shared<const Key>(std::move(item));
  return key;
}
Key section(const char* name, KeyTable table) {
  Key key = make(name, kObject, Json::object(), "");
  key.table = std::make_shared<const KeyTable>(std::move(table));
  key.description = key.table->description;
  return key;
}
Key optional_section(const char* name, KeyTable table) {
  Key key = section(name, std::move(table));
  key.types |= kNull;
  key.default_value = nullptr;
  return key;
}
Key named_sections(const char* name, KeyTable each, const char* description) {
  Key key = section(name, std::move(each));
  key.free_names = true;
  key.description = description;
  return key;
}
Key section_by(const char* name, const char* sibling,
               std::vector<std::pair<std::string, KeyTable>> variants, const char* description) {
  Key key = make(name, kObject, Json::object(), description);
  key.chosen_by = sibling;
  for (std::pair<std::string, KeyTable>& one : variants) {
    key.variants.emplace_back(one.first, std::make_shared<const KeyTable>(std::move(one.second)));
  }
  return key;
}
Key anything(const char* name, const char* description) {
  return make(name, kAnyType, nullptr, description);
}

Key any_integer() { return make("", kInt, 0, ""); }
Key any_number() { return make("", kNumber, 0.0, ""); }
Key any_text() { return make("", kString, "", ""); }

}  // namespace keys

namespace {

// Of a required choice, messages name only what this build has.
bool is_offered(const Key& key, const std::string& choice) {
  return !key.required || key.harmless.empty() || is_harmless(key, choice);
}

}  // namespace

std::string describe_types(const Key& key, bool with_null, bool all) {
  if (key.types & kAnyType) return "any value";
  std::vector<std::string> words;
  if (key.types & kBool) words.emplace_back("true or false");
  if (key.types & kInt) words.emplace_back("an integer");
  if (key.types & kNumber) words.emplace_back("a number");
  if (key.numeric_text) words.emplace_back("a number in a string");
  if (key.types & kString) {
    std::vector<std::string> names;
    for (const auto& spellings : key.choices) {
      if (all || is_offered(key, spellings[0])) names.push_back("\"" + spellings[0] + "\"");
    }
    if (names.empty()) {
      words.emplace_back("a string");
    } else {
      words.push_back((names.size() > 1 ? "one of " : "") + join(names, ", "));
    }
  }
  if (key.string_is_list) words.emplace_back("a string");
  if (key.types & kList) {
    words.push_back(key.item && key.item->types != kAnyType
                        ? "a list (each " + describe_types(*key.item, /*with_null=*/true, all) + ")"
                        : "a list");
  }
  if (key.types & kObject) words.emplace_back("an object");
  if (!key.bool_sets.empty()) words.emplace_back("true or false (deprecated)");
  if (with_null && (key.types & kNull)) words.emplace_back("null");
  return join(words, " or ");
}

std::string describe_range(const Key& key) {
  std::vector<std::string> parts;
  if (key.min) parts.push_back((key.above_min ? "above " : "at least ") + format_number(*key.min));
  if (key.max) parts.push_back((key.below_max ? "below " : "at most ") + format_number(*key.max));
  if (key.multiple_of == 2) parts.emplace_back("even");
  return join(parts, " and ");
}

bool is_harmless(const Key& key, const Json& value) {
  if (key.lacking.empty()) return true;
  if (!key.required && value == key.default_value) return true;
  return std::find(key.harmless.begin(), key.harmless.end(), value) != key.harmless.end();
}

}  // namespace ds
