// Libraries that are opened while the program runs, because most machines do not have them.
#pragma once

#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace ds {

// Where a library may be: a variable of the environment, or else the usual names, best first.
struct LibraryPlaces {
  const char* what;      // "cuBLASLt", for messages
  const char* variable;  // names another place
  std::span<const char* const> names;
  bool global = false;  // what it opens itself looks for its symbols

  // The place that the environment names; empty: none.
  std::string named() const;
};

// Stays loaded: what is opened here has state that outlives every use.
class DynamicLibrary {
 public:
  // The file at `place`. Empty: the first of the names that the process has loaded, or else that
  // can be opened; "off": none. Never throws for a library that is not there.
  static DynamicLibrary open(const LibraryPlaces& places, const std::string& place);

  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }
  // Why none can be used: none was opened, or the symbols that it lacks. Empty when it can.
  std::string reason() const;
  const std::vector<std::string>& missing() const { return missing_; }

  template <class Function>
  void need(Function& function, const char* symbol) {
    function = reinterpret_cast<std::decay_t<Function>>(needed(symbol));
  }

 private:
  void* needed(const char* symbol);

  const char* what_ = nullptr;
  void* handle_ = nullptr;
  std::string name_, failure_;
  std::vector<std::string> missing_;
};

}  // namespace ds
