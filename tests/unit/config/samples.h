// Values made from key tables, for tests that visit every key.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/key_table.h"
#include "config/parse.h"

namespace ds::testing_support {

Json minimal_object(const KeyTable& table, bool switched_on = false);

inline bool in_range(const Key& key, double value) {
  if (key.min && (key.above_min ? value <= *key.min : value < *key.min)) return false;
  return !key.max || (key.below_max ? value < *key.max : value <= *key.max);
}

// Valid values of the key, the unusual ones first.
inline std::vector<Json> valid_values(const Key& key) {
  std::vector<Json> out;
  if ((key.types & kList) && key.item) {
    out.emplace_back(std::max<size_t>(key.min_items, 1), valid_values(*key.item).front());
  }
  if (key.types & kBool) out.insert(out.end(), {Json(true), Json(false)});
  for (const auto& spellings : key.choices) out.insert(out.begin(), Json(spellings[0]));
  for (const double value : {1.0, 2.0, 4.0, 0.0, -1.0, 0.25, 0.15}) {
    if (!(key.types & (kInt | kNumber)) || !in_range(key, value)) continue;
    const auto whole = static_cast<int64_t>(value);
    if (key.multiple_of != 0 && whole % key.multiple_of != 0) continue;
    if (key.types & kNumber) out.emplace_back(value);
    if ((key.types & kInt) && static_cast<double>(whole) == value) out.emplace_back(whole);
  }
  if ((key.types & kString) && key.choices.empty()) out.emplace_back("other");
  if (key.types & kAnyType) out.emplace_back("anything");
  if (key.table && !key.free_names) out.push_back(minimal_object(*key.table));
  if (key.free_names) out.push_back({{"name", minimal_object(*key.table)}});
  return out;
}

// A valid value that is not the default and, if the key is lacking, asks for what is lacking; null
// when there is none.
inline Json other_value(const Key& key) {
  for (const Json& value : valid_values(key)) {
    if (value == key.default_value && !key.required) continue;
    if (key.lacking.empty() || !is_harmless(key, value)) return value;
  }
  return nullptr;
}

// An object with the required keys alone; `switched_on` also opens the gate.
inline Json minimal_object(const KeyTable& table, bool switched_on) {
  Json out = Json::object();
  for (const Key& key : table.keys) {
    if (key.variants.empty() && key.table && key.default_value.is_object() && !key.free_names) {
      Json inner = minimal_object(*key.table);
      if (!inner.empty()) out[key.name] = std::move(inner);
    }
    for (const auto& [choice, variant] : key.variants) {
      if (out.at(key.chosen_by) == choice) out[key.name] = minimal_object(*variant);
    }
    if (switched_on && (key.name == table.gate || key.required_when_on)) {
      out[key.name] = other_value(key);
    } else if (key.required) {
      for (const Json& value : valid_values(key)) {
        if (is_harmless(key, value)) out[key.name] = value;
      }
    }
  }
  return out;
}

// One key of the whole tree, with what it takes to write a document that sets it.
struct Visit {
  const Key& key;
  const KeyTable& table;
  std::string path;
  std::vector<std::string> gates;  // paths of the gates above, own table's included
  // The smallest document with `object` in place of the object that holds the key.
  std::function<Json(Json object)> document;
  // Opens the gates on the way, too.
  std::function<Json(Json object)> open_document;
};

inline void visit_keys(const KeyTable& table, const std::string& path,
                       const std::vector<std::string>& gates_above,
                       const std::function<Json(Json)>& document,
                       const std::function<Json(Json)>& open_document,
                       const std::function<void(const Visit&)>& visitor) {
  std::vector<std::string> gates = gates_above;
  if (!table.gate.empty()) gates.push_back(path + "/" + table.gate);
  for (const Key& key : table.keys) {
    const std::string here = path + "/" + key.name;
    visitor({key, table, here, gates, document, open_document});
    const auto descend = [&](const KeyTable& inner, const std::string& inner_path,
                             const std::function<Json(Json)>& wrap, const Json& chooser) {
      const auto place = [&table, &key, wrap, chooser](Json object, bool open) {
        Json outer = minimal_object(table, open);
        if (!chooser.is_null()) outer[key.chosen_by] = chooser;
        outer[key.name] = wrap(std::move(object));
        return outer;
      };
      visit_keys(
          inner, inner_path, gates,
          [document, place](Json object) { return document(place(std::move(object), false)); },
          [open_document, place](Json object) {
            return open_document(place(std::move(object), true));
          },
          visitor);
    };
    if (key.table && key.free_names) {
      descend(
          *key.table, here + "/name",
          [](Json object) {
            return Json{{"name", object}};
          },
          nullptr);
    } else if (key.table) {
      descend(
          *key.table, here, [](Json object) { return object; }, nullptr);
    }
    for (const auto& [choice, variant] : key.variants) {
      descend(
          *variant, here, [](Json object) { return object; }, choice);
    }
  }
}

// Calls `visitor` for every key of the tree below `table`.
inline void visit_all_keys(const KeyTable& table,
                           const std::function<void(const Visit&)>& visitor) {
  const auto same = [](Json object) { return object; };
  visit_keys(table, "", {}, same, same, visitor);
}

}  // namespace ds::testing_support
