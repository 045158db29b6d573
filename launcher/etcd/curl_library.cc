#include "launcher/etcd/curl_library.h"

#include <dlfcn.h>

namespace ddp::etcd {
namespace {

constexpr const char* kFile = "libcurl.so.4";

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

Result<CurlLibrary> open_library() {
  void* file = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) {
    return make_error(
        Errc::kNotFound,
        "--rdzv-backend etcd needs {}, which cannot be loaded ({}); install the package libcurl4",
        kFile, ::dlerror());
  }
  CurlLibrary curl;
  const bool complete = find(file, "curl_global_init", curl.global_init) &&
                        find(file, "curl_easy_init", curl.easy_init) &&
                        find(file, "curl_easy_cleanup", curl.easy_cleanup) &&
                        find(file, "curl_easy_setopt", curl.set_option) &&
                        find(file, "curl_easy_getinfo", curl.get_info) &&
                        find(file, "curl_easy_strerror", curl.describe) &&
                        find(file, "curl_slist_append", curl.list_append) &&
                        find(file, "curl_slist_free_all", curl.list_free) &&
                        find(file, "curl_multi_init", curl.multi_init) &&
                        find(file, "curl_multi_cleanup", curl.multi_cleanup) &&
                        find(file, "curl_multi_setopt", curl.multi_set_option) &&
                        find(file, "curl_multi_add_handle", curl.multi_add) &&
                        find(file, "curl_multi_remove_handle", curl.multi_remove) &&
                        find(file, "curl_multi_socket_action", curl.multi_socket_action) &&
                        find(file, "curl_multi_info_read", curl.multi_info_read);
  if (!complete || curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    return make_error(Errc::kNotFound, "{} is not usable; install the package libcurl4", kFile);
  }
  return curl;
}

}  // namespace

Result<const CurlLibrary*> CurlLibrary::load() {
  static const Result<CurlLibrary> library = open_library();
  if (!library) return library.error();
  return &*library;
}

}  // namespace ddp::etcd
