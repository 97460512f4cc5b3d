#include "base/dynamic_library.h"

#include <dlfcn.h>

#include <vector>

#include "base/text.h"

namespace ds {

DynamicLibrary DynamicLibrary::open(const LibraryPlaces& places, const std::string& place) {
  DynamicLibrary out;
  out.what_ = places.what;
  if (place == "off") {
    out.reason_ = str_cat(places.variable, " is \"off\"");
    return out;
  }
  const auto take = [&out](const char* name, int mode) {
    out.handle_ = ::dlopen(name, mode | RTLD_NOW | RTLD_LOCAL);
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
  out.reason_ = str_cat(places.what, " was not found (", places.variable,
                        " names another place): ", join(failures, "; "));
  return out;
}

void* DynamicLibrary::needed(const char* symbol) {
  void* const found = handle_ != nullptr ? ::dlsym(handle_, symbol) : nullptr;
  if (found == nullptr && reason_.empty()) {
    reason_ = str_cat(name_, " is no usable ", what_, ": it has no ", symbol);
  }
  return found;
}

}  // namespace ds
