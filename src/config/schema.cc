#include "config/schema.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "config/config_table.h"

namespace ds {
namespace {

Json schema_of(const KeyTable& table);

// {"anyOf": [...]}, or the one alternative itself.
Json any_of(std::vector<Json> alternatives) {
  std::vector<Json> distinct;
  for (Json& one : alternatives) {
    if (std::find(distinct.begin(), distinct.end(), one) == distinct.end()) {
      distinct.push_back(std::move(one));
    }
  }
  if (distinct.size() == 1) return std::move(distinct.front());
  Json out = Json::object();
  out["anyOf"] = std::move(distinct);
  return out;
}

Json number_schema(const Key& key, bool whole) {
  Json out = Json::object();
  // 5e8 is an integer in JSON Schema too, because it has no fraction.
  out["type"] = whole ? "integer" : "number";
  if (key.min) out[key.above_min ? "exclusiveMinimum" : "minimum"] = *key.min;
  if (key.max) out[key.below_max ? "exclusiveMaximum" : "maximum"] = *key.max;
  if (key.multiple_of > 0) out["multipleOf"] = key.multiple_of;
  return out;
}

// Choices in any case are left to ds_config_check: JSON Schema compares letters.
Json text_schema(const Key& key) {
  Json out = Json::object();
  out["type"] = "string";
  if (key.choices.empty() || key.any_case) return out;
  Json words = Json::array();
  for (const auto& spellings : key.choices) {
    for (const std::string& word : spellings) words.push_back(word);
  }
  out["enum"] = std::move(words);
  return out;
}

Json plain(const char* type) {
  Json out = Json::object();
  out["type"] = type;
  return out;
}

Json value_schema(const Key& key, bool auto_is_default);

Json list_schema(const Key& key, bool auto_is_default) {
  Json out = plain("array");
  if (key.item) out["items"] = value_schema(*key.item, auto_is_default);
  if (key.min_items > 0) out["minItems"] = key.min_items;
  if (key.max_items < SIZE_MAX) out["maxItems"] = key.max_items;
  return out;
}

Json object_schema(const Key& key) {
  if (key.table && key.free_names) {
    Json out = plain("object");
    out["additionalProperties"] = schema_of(*key.table);
    return out;
  }
  if (key.table) return schema_of(*key.table);
  std::vector<Json> variants;
  for (const auto& [choice, table] : key.variants) variants.push_back(schema_of(*table));
  return variants.empty() ? plain("object") : any_of(std::move(variants));
}

Json value_schema(const Key& key, bool auto_is_default) {
  if (key.types & kAnyType) return Json::object();
  const bool boolean = key.types & kBool, number = key.types & (kInt | kNumber);
  std::vector<Json> alternatives;
  if (boolean || !key.bool_sets.empty()) alternatives.push_back(plain("boolean"));
  if (number) alternatives.push_back(number_schema(key, !(key.types & kNumber)));
  if (key.types & kString) alternatives.push_back(text_schema(key));
  if (key.types & kList) alternatives.push_back(list_schema(key, auto_is_default));
  if (key.string_is_list) alternatives.push_back(plain("string"));
  const bool object = (key.types & kObject) || key.table || !key.variants.empty();
  if (object) alternatives.push_back(object_schema(key));
  if (key.types & kNull) alternatives.push_back(plain("null"));
  // Booleans and numbers as text, and "auto" for the default.
  if (key.numeric_text || (auto_is_default && (boolean || number))) {
    alternatives.push_back(plain("string"));
  } else if (auto_is_default && !object && !(key.types & kString)) {
    Json word = Json::object();
    word["const"] = "auto";
    alternatives.push_back(std::move(word));
  }
  return any_of(std::move(alternatives));
}

Json key_schema(const Key& key, bool auto_is_default) {
  Json out = value_schema(key, auto_is_default);
  std::string description = key.description;
  if (!key.lacking.empty()) description += " Not in this build: " + key.lacking + ".";
  if (!key.replacement.empty()) description += " Instead: " + key.replacement + ".";
  if (!key.forward.empty()) description += " Instead: " + key.forward + ".";
  if (!description.empty()) out["description"] = std::move(description);
  if (!key.default_value.is_null()) out["default"] = key.default_value;
  if (key.deprecated) out["deprecated"] = true;
  return out;
}

Json schema_of(const KeyTable& table) {
  Json out = plain("object");
  if (!table.description.empty()) out["description"] = table.description;
  Json properties = Json::object(), required = Json::array();
  for (const Key& key : table.keys) {
    const Json schema = key_schema(key, table.auto_is_default);
    properties[key.name] = schema;
    for (const std::string& alias : key.aliases) properties[alias] = schema;
    if (key.required && key.aliases.empty()) required.push_back(key.name);
  }
  out["properties"] = std::move(properties);
  if (!required.empty()) out["required"] = std::move(required);
  out["additionalProperties"] = table.other_keys;
  return out;
}

}  // namespace

Json config_schema() {
  Json out = schema_of(config_table());
  out["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  out["title"] = "ds configuration";
  return out;
}

}  // namespace ds
