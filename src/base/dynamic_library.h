// Libraries that are opened while the program runs, because most machines do not have them.
#pragma once

#include <span>
#include <string>
#include <type_traits>

namespace ds {

// Where a library may be: a variable of the environment, or else the usual names, best first.
struct LibraryPlaces {
  const char* what;      // "cuBLASLt", for messages
  const char* variable;  // names another place
  std::span<const char* const> names;
};

// Stays loaded: what is opened here has state that outlives every use.
class DynamicLibrary {
 public:
  // The file at `place`. Empty: the first of the names that the process has loaded, or else that
  // can be opened. Never throws for a library that is not there.
  static DynamicLibrary open(const LibraryPlaces& places, const std::string& place);

  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }
  const std::string& reason() const { return reason_; }  // why none was opened

  // False when the library lacks it.
  template <class Function>
  bool find(const char* symbol, Function& function) const {
    function = reinterpret_cast<std::decay_t<Function>>(address(symbol));
    return function != nullptr;
  }

 private:
  void* address(const char* symbol) const;

  void* handle_ = nullptr;
  std::string name_, reason_;
};

}  // namespace ds
