#include "worker/transport/ucx_worker.h"

#include <poll.h>

#include <cstring>

#include "common/base/errc.h"

namespace ddp::transport {
namespace {

Error ucx_error(const UcxLibrary& ucx, const char* what, ucs_status_t status) {
  return make_error(Errc::kIo, "UCX: {}: {}", what, ucx.ucs_status_string(status));
}

Result<ucp_context_h> open_context(const UcxLibrary& ucx) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx.ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK)
    return ucx_error(ucx, "cannot read its environment variables (UCX_...)", status);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  ucp_context_h context = nullptr;
  status = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  ucx.ucp_config_release(config);
  if (status != UCS_OK) return ucx_error(ucx, "cannot be started", status);
  return context;
}

// Opening the devices is slow, so each process does it once.
Result<ucp_context_h> shared_context(const UcxLibrary& ucx) {
  static const Result<ucp_context_h> context = open_context(ucx);
  return context;
}

}  // namespace

Result<std::shared_ptr<UcxWorker>> UcxWorker::create() {
  auto ucx = UcxLibrary::get();
  if (!ucx) return ucx.error();
  auto context = shared_context(**ucx);
  if (!context) return context.error();
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h handle = nullptr;
  const ucs_status_t status = (*ucx)->ucp_worker_create(*context, &params, &handle);
  if (status != UCS_OK) return ucx_error(**ucx, "cannot create a worker", status);
  std::shared_ptr<UcxWorker> worker(new UcxWorker(**ucx, handle));
  if (auto ready = worker->set_up(); !ready) return ready.error();
  return worker;
}

Result<void> UcxWorker::set_up() {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kUcxMessage;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &UcxWorker::on_message;
  handler.arg = this;
  ucs_status_t status = ucx_.ucp_worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) return ucx_error(ucx_, "cannot receive active messages", status);
  status = ucx_.ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return ucx_error(ucx_, "the transports cannot wake a sleeper", status);
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  status = ucx_.ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return ucx_error(ucx_, "the worker has no address", status);
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucx_.ucp_worker_release_address(worker_, address);
  return {};
}

UcxWorker::~UcxWorker() { ucx_.ucp_worker_destroy(worker_); }

std::uint32_t UcxWorker::add(UcxReceiver& receiver) {
  receivers_[next_link_] = &receiver;
  return next_link_++;
}

void UcxWorker::remove(std::uint32_t link) { receivers_.erase(link); }

void UcxWorker::wait(Duration limit) {
  progress();
  if (!arm()) return;
  pollfd entry{event_fd_, POLLIN, 0};
  ::poll(&entry, 1, static_cast<int>(limit.count()));
  progress();
}

ucs_status_t UcxWorker::on_message(void* self, const void* header, std::size_t header_bytes,
                                   void* data, std::size_t bytes,
                                   const ucp_am_recv_param_t* param) {
  UcxFrame frame;
  if (header_bytes != sizeof(frame)) return UCS_OK;
  std::memcpy(&frame, header, sizeof(frame));
  const auto& receivers = static_cast<UcxWorker*>(self)->receivers_;
  const auto found = receivers.find(frame.link);
  // Drops what arrives for a closed link.
  if (found == receivers.end()) return UCS_OK;
  return found->second->on_frame(frame, data, bytes, param->recv_attr);
}

}  // namespace ddp::transport
