#pragma once

#include <ucp/api/ucp.h>

#include "common/base/result.h"

// The functions of libucp that UcxWorker and UcxStream call.
#define DDP_UCX_FUNCTIONS(X)        \
  X(ucp_init_version)               \
  X(ucp_cleanup)                    \
  X(ucp_config_read)                \
  X(ucp_config_release)             \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_progress)            \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_arm)                 \
  X(ucp_worker_get_address)         \
  X(ucp_worker_release_address)     \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_ep_create)                  \
  X(ucp_ep_flush_nbx)               \
  X(ucp_ep_close_nbx)               \
  X(ucp_am_send_nbx)                \
  X(ucp_am_recv_data_nbx)           \
  X(ucp_am_data_release)            \
  X(ucp_request_check_status)       \
  X(ucp_request_free)               \
  X(ucs_status_string)

namespace ddp::transport {

// libucp, loaded at the first call of get(). It is not linked, because loading it alone installs
// handlers for SIGSEGV and similar signals, which would change how every worker's crash is
// reported, and adds 2 ms to every start. Also, users who do not need UCX need not install it.
struct UcxLibrary {
#define DDP_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  DDP_UCX_FUNCTIONS(DDP_UCX_MEMBER)
#undef DDP_UCX_MEMBER

  // Stays loaded for the life of the process. kNotFound says what is missing. Any thread.
  static Result<const UcxLibrary*> get();
};

}  // namespace ddp::transport
