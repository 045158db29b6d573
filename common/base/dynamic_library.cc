#include "common/base/dynamic_library.h"

#include <dlfcn.h>

namespace ddp {

Result<DynamicLibrary> DynamicLibrary::open(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
      return DynamicLibrary(handle, name);
    }
  }
  std::string reasons;
  for (const std::string& name : names) {
    if (void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return DynamicLibrary(handle, name);
    }
    const char* reason = ::dlerror();
    if (!reasons.empty()) reasons += "; ";
    reasons += reason != nullptr ? reason : name + ": no reason given";
  }
  return make_error(Errc::kNotFound, "{}", reasons);
}

void* DynamicLibrary::symbol(const char* symbol_name) const {
  return ::dlsym(handle_, symbol_name);
}

}  // namespace ddp
