#include "worker/transport/ucx_library.h"

#include "common/base/dynamic_library.h"

namespace ddp::transport {
namespace {

Result<UcxLibrary> load() {
  const auto file = DynamicLibrary::open({"libucp.so.0"});
  if (!file) {
    return make_error(Errc::kNotFound, "cannot load UCX: {}; install libucx0",
                      file.error().message);
  }
  UcxLibrary library;
  Symbols symbols(*file);
#define DDP_UCX_LOOK_UP(name) symbols.need(library.name, #name);
  DDP_UCX_FUNCTIONS(DDP_UCX_LOOK_UP)
#undef DDP_UCX_LOOK_UP
  if (!symbols.missing().empty()) {
    return make_error(Errc::kNotFound, "libucp.so.0 has no {}; UCX 1.13 or newer is needed",
                      symbols.missing());
  }
  // UCX must not change how a crash of the program is reported: its signal, status and core dump.
  void (*disable)() = nullptr;
  symbols.want(disable, "ucs_debug_disable_signals");
  if (disable != nullptr) disable();
  return library;
}

}  // namespace

Result<const UcxLibrary*> UcxLibrary::get() {
  static const Result<UcxLibrary> loaded = load();
  if (!loaded) return loaded.error();
  return &*loaded;
}

}  // namespace ddp::transport
