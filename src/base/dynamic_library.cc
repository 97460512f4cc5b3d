#include "base/dynamic_library.h"

#include <dlfcn.h>

#include <vector>

#include "base/text.h"

namespace ds {

DynamicLibrary DynamicLibrary::open(const LibraryPlaces& places, const std::string& place) {
  DynamicLibrary out;
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
  std::vector<std::string> troubles;
  for (const std::string& name : names) {
    if (take(name.c_str(), 0)) return out;
    const char* const why = ::dlerror();
    troubles.emplace_back(why != nullptr ? why : name + " cannot be opened");
  }
  out.reason_ = str_cat(places.what, " was not found (", places.variable,
                        " names another place): ", join(troubles, "; "));
  return out;
}

void* DynamicLibrary::address(const char* symbol) const { return ::dlsym(handle_, symbol); }

}  // namespace ds
