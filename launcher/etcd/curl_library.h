#pragma once

#include <curl/curl.h>

#include "common/base/result.h"

namespace ddp::etcd {

// The functions of libcurl that are used here, loaded at run time. libcurl brings thirty other
// libraries along. Loading them would cost every ddp-run more time than the rest of its start, and
// only --rdzv-backend etcd needs them. Never unloaded.
struct CurlLibrary {
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_easy_setopt) set_option = nullptr;
  decltype(&::curl_easy_getinfo) get_info = nullptr;
  decltype(&::curl_easy_strerror) describe = nullptr;
  decltype(&::curl_slist_append) list_append = nullptr;
  decltype(&::curl_slist_free_all) list_free = nullptr;
  decltype(&::curl_multi_init) multi_init = nullptr;
  decltype(&::curl_multi_cleanup) multi_cleanup = nullptr;
  decltype(&::curl_multi_setopt) multi_set_option = nullptr;
  decltype(&::curl_multi_add_handle) multi_add = nullptr;
  decltype(&::curl_multi_remove_handle) multi_remove = nullptr;
  decltype(&::curl_multi_socket_action) multi_socket_action = nullptr;
  decltype(&::curl_multi_info_read) multi_info_read = nullptr;

  // Loads the library on the first call. The message of kNotFound names the missing package. May be
  // called on any thread.
  static Result<const CurlLibrary*> load();
};

}  // namespace ddp::etcd
