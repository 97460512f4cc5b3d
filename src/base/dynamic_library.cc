#include "base/dynamic_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/text.h"

namespace ds {

std::string LibraryPlaces::named() const {
  const char* const place = std::getenv(variable);
  return place != nullptr ? place : "";
}

DynamicLibrary DynamicLibrary::open(const LibraryPlaces& places, const std::string& place) {
  DynamicLibrary out;
  out.what_ = places.what;
  if (place == "off") {
    out.failure_ = str_cat(places.variable, " is \"off\"");
    return out;
  }
  const int scope = places.global ? RTLD_GLOBAL : RTLD_LOCAL;
  const auto take = [&out, scope](const char* name, int mode) {
    out.handle_ = ::dlopen(name, mode | RTLD_NOW | scope);
    if (out.handle_ != nullptr) out.name_ = name;
    return out.handle_ != nullptr;
  };
  std::vector<std::string> names{place};
  if (place.empty()) {
    names.assign(places.names.begin(), places.names.end());
    for (const std::string& name : names) {
      if (take(name.c_str(), RTLD_NOLOAD)) return out;
    }
  }
  std::vector<std::string> failures;
  for (const std::string& name : names) {
    if (take(name.c_str(), 0)) return out;
    const char* const why = ::dlerror();
    failures.emplace_back(why != nullptr ? why : name + " cannot be opened");
  }
  out.failure_ = str_cat(places.what, " was not found (", places.variable,
                         " names another place): ", join(failures, "; "));
  return out;
}

void* DynamicLibrary::needed(const char* symbol) {
  void* const found = handle_ != nullptr ? ::dlsym(handle_, symbol) : nullptr;
  if (found == nullptr && handle_ != nullptr) missing_.emplace_back(symbol);
  return found;
}

std::string DynamicLibrary::reason() const {
  if (missing_.empty()) return failure_;
  return str_cat(name_, " is no usable ", what_, ": it has no ", join(missing_, ", "));
}

}  // namespace ds
