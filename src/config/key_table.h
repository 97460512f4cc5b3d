// Key tables: what a JSON object may hold, written as data. The parser, the error texts, the
// documentation and the resolved document of the configuration all come from them; other layers
// describe their own small JSON objects the same way.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "base/json.h"

namespace ds {

// JSON types that a key accepts; a mask. A double without fraction (5e8) is an integer too.
enum JsonType : unsigned {
  kBool = 1,
  kInt = 2,
  kNumber = 4,
  kString = 8,
  kList = 16,
  kObject = 32,
  kNull = 64,
  kAnyType = 128,
};

struct KeyTable;
using KeyTablePtr = std::shared_ptr<const KeyTable>;

struct Key {
  std::string name;
  std::string description;
  std::vector<std::string> aliases;
  unsigned types = 0;
  Json default_value;  // null = unset
  bool required = false;
  bool required_when_on = false;  // required once the table's gate is open

  // Numbers.
  std::optional<double> min, max;
  bool above_min = false, below_max = false;  // the bound itself is outside
  int64_t multiple_of = 0;
  bool numeric_text = false;  // "3" is accepted as 3

  // Strings: each choice is a list of spellings, the first being the one in resolved documents.
  std::vector<std::vector<std::string>> choices;
  bool any_case = false;

  // Lists.
  std::shared_ptr<const Key> item;
  size_t min_items = 0, max_items = SIZE_MAX;
  bool unique = false;          // repeated items are dropped
  bool string_is_list = false;  // "x" is accepted as ["x"]

  // Objects: one table; or names chosen by the user, each holding an object of that table
  // (`free_names`); or a table per value of a sibling key (`chosen_by`).
  KeyTablePtr table;
  bool free_names = false;
  std::string chosen_by;
  std::vector<std::pair<std::string, KeyTablePtr>> variants;
  std::string bool_sets;  // deprecated: a bare boolean sets this key of the object to 1 or 0

  // Deprecated keys: where the value goes, and what true becomes there (null = the value itself).
  bool deprecated = false;
  std::string forward;  // "key" or "key/subkey" within the same table
  Json forward_true;
  std::string replacement;  // for people, when there is nothing to forward to

  // "auto" would decide what is trained or where, so that it never silently means the default.
  bool caller_decides = false;
  std::string instead;  // path of the key that does what people expect of this one

  // What this build lacks, as a noun phrase; empty when the key is honoured. A value that differs
  // from the default and from `harmless` is refused. Within a table whose gate is closed only
  // `refused_always` keys are.
  std::string lacking;
  std::vector<Json> harmless;
  bool refused_always = false;

  // Puts a value into its field of an object of the struct `stored_in`; see config/key_fields.h.
  std::function<void(void* object, const Key& key, const Json& value)> store;
  const std::type_info* stored_in = nullptr;

  // Fluent setters, so that a table reads as rows.
  Key also(std::initializer_list<const char*> other_names) &&;
  Key must_be_given() &&;
  Key must_be_given_when_on() &&;
  Key at_least(double bound) &&;
  Key at_most(double bound) &&;
  Key above(double bound) &&;
  Key below(double bound) &&;
  Key even() &&;
  Key or_null() &&;
  Key or_word(const char* word) &&;  // a string choice beside the other types
  Key or_list_of(Key item_key) &&;
  Key or_numeric_text() &&;
  Key in_any_case() &&;
  Key items(size_t least, size_t most) &&;
  Key without_repeats() &&;
  Key or_one_string() &&;
  Key or_bool_for(const char* key) &&;
  Key replaced_by(const char* path, Json value_of_true = nullptr) &&;
  Key retired(const char* what_instead) &&;
  Key needs(const char* feature, std::vector<Json> other_accepted_values = {}) &&;
  Key always() &&;
  Key decided_by_caller() &&;
  Key rather(const char* path) &&;
  // The field that the value goes to, reached over `inner` from a field of the struct.
  template <class Object, class Field, class... Inner>
  Key to(Field Object::*field, Inner... inner) &&;
  // Of a choice: the values that the field gets, in the order of the choices.
  template <class Value, class Object, class Field, class... Inner>
  Key chooses(std::vector<Value> values, Field Object::*field, Inner... inner) &&;
  // Of a list: the fields that its items go to, in their order.
  template <class Object, class... Field>
  Key items_to(Field Object::*... field) &&;
};

struct KeyTable {
  std::string description;
  std::vector<Key> keys;
  // The key that turns the table's feature on: while it has its default value, the other keys are
  // checked but ask for nothing.
  std::string gate;
  bool gate_always = false;  // counts even inside a table whose own gate is closed
  // As DeepSpeed's typed sections: the string "auto" means the default, and booleans and numbers
  // may be given as text.
  bool auto_is_default = false;
  bool other_keys = false;       // further keys are kept as they are (opaque sections)
  bool ignores_unknown = false;  // DeepSpeed passes over further keys; lenient reading too

  KeyTable gated_by(const char* key, bool always = false) &&;
  KeyTable accepts_auto() &&;
  KeyTable accepts_other_keys() &&;
  KeyTable ignores_other_keys() &&;
  const Key* find(std::string_view name) const;  // by name or alias
};

// Rows. An unset default makes null acceptable.
namespace keys {

KeyTable table(const char* description, std::vector<Key> rows);

Key flag(const char* name, std::optional<bool> value, const char* description);
Key integer(const char* name, std::optional<int64_t> value, const char* description);
Key number(const char* name, std::optional<double> value, const char* description);
Key text(const char* name, std::optional<const char*> value, const char* description);
// Spellings of one choice are separated by '|'.
Key choice(const char* name, std::initializer_list<const char*> choices,
           std::optional<const char*> value, const char* description);
// `value` is JSON text ("null" = unset).
Key list(const char* name, Key item, const char* value, const char* description);
Key section(const char* name, KeyTable table);           // absent = all defaults
Key optional_section(const char* name, KeyTable table);  // absent = null
Key named_sections(const char* name, KeyTable each, const char* description);
Key section_by(const char* name, const char* sibling,
               std::vector<std::pair<std::string, KeyTable>> variants, const char* description);
Key anything(const char* name, const char* description);

Key any_integer();  // nameless keys for list items
Key any_number();
Key any_text();

}  // namespace keys

// "an integer", "true, false or null": the words for messages and documentation.
// Of a required choice, `all` names also what this build lacks.
std::string describe_types(const Key& key, bool with_null = true, bool all = false);
// "at least 0 and below 1", or "" without bounds.
std::string describe_range(const Key& key);
// True when `value` needs nothing that this build lacks.
bool is_harmless(const Key& key, const Json& value);

}  // namespace ds
