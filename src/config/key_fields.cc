#include "config/key_fields.h"

#include "base/error.h"
#include "base/text.h"

namespace ds {
namespace {

// The table that describes the object at a key; null where the user chooses the names in it.
const KeyTable* table_of(const Key& key, const Json& siblings) {
  if (key.chosen_by.empty()) return key.free_names ? nullptr : key.table.get();
  const auto chosen = siblings.find(key.chosen_by);
  for (const auto& [name, table] : key.variants) {
    if (chosen != siblings.end() && *chosen == name) return table.get();
  }
  return nullptr;
}

}  // namespace

bool gate_closed(const KeyTable& table, const Json& values) {
  if (table.gate.empty()) return false;
  const Key* const gate = table.find(table.gate);
  const auto value = values.find(table.gate);
  return gate != nullptr && (value == values.end() || *value == gate->default_value);
}

void read_fields(const KeyTable& table, const Json& values, void* object,
                 const std::type_info& type) {
  for (const Key& key : table.keys) {
    const auto value = values.find(key.name);
    if (value == values.end()) continue;
    if (key.store) {
      DS_CHECK(*key.stored_in == type, Code::kInternal, "key ", key.name,
               " has a field of another struct than the section that it is in");
      key.store(object, key, *value);
    } else if (const KeyTable* const inner = value->is_object() ? table_of(key, values) : nullptr) {
      read_fields(*inner, *value, object, type);
    }
  }
}

}  // namespace ds
