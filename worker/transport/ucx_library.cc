#include "worker/transport/ucx_library.h"

#include <dlfcn.h>

#include "common/base/errc.h"

namespace ddp {
namespace {

Result<UcxLibrary> load() {
  void* handle = ::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return make_error(Errc::kNotFound, "cannot load UCX: {}; install libucx0", ::dlerror());
  }
  UcxLibrary library;
#define DDP_UCX_LOOK_UP(name)                                                                \
  library.name = reinterpret_cast<decltype(library.name)>(::dlsym(handle, #name));           \
  if (library.name == nullptr) {                                                             \
    return make_error(Errc::kNotFound, "libucp.so.0 has no {}; UCX 1.13 or newer is needed", \
                      #name);                                                                \
  }
  DDP_UCX_FUNCTIONS(DDP_UCX_LOOK_UP)
#undef DDP_UCX_LOOK_UP
  // UCX must not change how a crash of the program is reported: its signal, status and core dump.
  if (auto* disable = reinterpret_cast<void (*)()>(::dlsym(handle, "ucs_debug_disable_signals")))
    disable();
  return library;
}

}  // namespace

Result<const UcxLibrary*> UcxLibrary::get() {
  static const Result<UcxLibrary> loaded = load();
  if (!loaded) return loaded.error();
  return &*loaded;
}

}  // namespace ddp
