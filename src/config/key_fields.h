// From the rows of a key table to the fields of a struct: a row says with Key::to where its value
// goes, and read_fields puts it there. So a key has its default, its bounds, its documentation and
// its field in one place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "config/key_table.h"

namespace ds {

// Puts the values of a parsed object of this table into `object`, which is of the struct that the
// rows name (kInternal for another). Sections without a field of their own share the object of the
// table around them; rows without a field are passed over, and null leaves a field as it is.
void read_fields(const KeyTable& table, const Json& values, void* object,
                 const std::type_info& type);
template <class Object>
Object read_as(const KeyTable& table, const Json& values) {
  Object out;
  read_fields(table, values, &out, typeid(Object));
  return out;
}
// True when the key that turns a section on stands at its default.
bool gate_closed(const KeyTable& table, const Json& values);

namespace fields {

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;
template <class T>
inline constexpr bool is_list = false;
template <class T>
inline constexpr bool is_list<std::vector<T>> = true;

// The field that a path of members leads to.
template <class Object>
Object& follow(Object& object) {
  return object;
}
template <class Object, class Field, class... Inner>
auto& follow(Object& object, Field Object::*field, Inner... inner) {
  return follow(object.*field, inner...);
}

// A type whose fields are not what its key's table names has an overload of its own.
template <class T>
void assign(T& field, const Key& key, const Json& value) {
  if constexpr (is_optional<T>) {
    field.reset();
    if (value.is_null() || (key.table && gate_closed(*key.table, value))) return;
    // A word in a number's place, such as "auto", leaves it unset.
    if (std::is_arithmetic_v<typename T::value_type> && value.is_string()) return;
    // Not emplace(): clang takes structs within a class for ones without a default constructor.
    field = typename T::value_type{};
    assign(*field, key, value);
  } else if (value.is_null()) {
    return;
  } else if constexpr (is_list<T>) {
    field.clear();
    for (const Json& item : value) {
      typename T::value_type one{};
      assign(one, *key.item, item);
      field.push_back(std::move(one));
    }
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool> &&
                       sizeof(T) < sizeof(int64_t)) {
    // More than the type holds is as good as the most that it holds.
    field = static_cast<T>(std::clamp<int64_t>(value.get<int64_t>(), std::numeric_limits<T>::min(),
                                               std::numeric_limits<T>::max()));
  } else if constexpr (std::is_class_v<T> && !std::is_same_v<T, std::string>) {
    read_fields(*key.table, value, &field, typeid(T));
  } else {
    field = value.get<T>();
  }
}

}  // namespace fields

template <class Object, class Field, class... Inner>
Key Key::to(Field Object::*field, Inner... inner) && {
  stored_in = &typeid(Object);
  store = [=](void* object, const Key& key, const Json& value) {
    using fields::assign;
    assign(fields::follow(*static_cast<Object*>(object), field, inner...), key, value);
  };
  return std::move(*this);
}

template <class Value, class Object, class Field, class... Inner>
Key Key::chooses(std::vector<Value> values, Field Object::*field, Inner... inner) && {
  stored_in = &typeid(Object);
  store = [=](void* object, const Key& key, const Json& value) {
    for (size_t i = 0; i < key.choices.size() && i < values.size(); ++i) {
      if (value == key.choices[i].front()) {
        fields::follow(*static_cast<Object*>(object), field, inner...) = values[i];
      }
    }
  };
  return std::move(*this);
}

template <class Object, class... Field>
Key Key::items_to(Field Object::*... field) && {
  stored_in = &typeid(Object);
  store = [=](void* object, const Key& key, const Json& value) {
    using fields::assign;
    size_t i = 0;
    const auto set = [&](auto& to) {
      if (i < value.size()) assign(to, *key.item, value.at(i));
      ++i;
    };
    (set(static_cast<Object*>(object)->*field), ...);
  };
  return std::move(*this);
}

}  // namespace ds
