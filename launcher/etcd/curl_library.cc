#include "launcher/etcd/curl_library.h"

#include "common/base/dynamic_library.h"

namespace ddp::etcd {
namespace {

constexpr const char* kFile = "libcurl.so.4";

Result<CurlLibrary> open_library() {
  const auto file = DynamicLibrary::open({kFile});
  if (!file) {
    return make_error(
        Errc::kNotFound,
        "--rdzv-backend etcd needs {}, which cannot be loaded ({}); install the package libcurl4",
        kFile, file.error().message);
  }
  CurlLibrary curl;
  Symbols symbols(*file);
  symbols.need(curl.global_init, "curl_global_init");
  symbols.need(curl.easy_init, "curl_easy_init");
  symbols.need(curl.easy_cleanup, "curl_easy_cleanup");
  symbols.need(curl.set_option, "curl_easy_setopt");
  symbols.need(curl.get_info, "curl_easy_getinfo");
  symbols.need(curl.describe, "curl_easy_strerror");
  symbols.need(curl.list_append, "curl_slist_append");
  symbols.need(curl.list_free, "curl_slist_free_all");
  symbols.need(curl.multi_init, "curl_multi_init");
  symbols.need(curl.multi_cleanup, "curl_multi_cleanup");
  symbols.need(curl.multi_set_option, "curl_multi_setopt");
  symbols.need(curl.multi_add, "curl_multi_add_handle");
  symbols.need(curl.multi_remove, "curl_multi_remove_handle");
  symbols.need(curl.multi_socket_action, "curl_multi_socket_action");
  symbols.need(curl.multi_info_read, "curl_multi_info_read");
  if (!symbols.missing().empty() || curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
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
