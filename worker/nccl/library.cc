#include "worker/nccl/library.h"

#include <cstdlib>

#include "common/base/dynamic_library.h"
#include "worker/nccl/cuda_api.h"
#include "worker/nccl/nccl_api.h"

namespace ddp {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string load_nccl(const DynamicLibrary& library, nccl::api::Api& api) {
  Symbols symbols(library);
  symbols.need(api.get_version, "ncclGetVersion");
  symbols.need(api.get_unique_id, "ncclGetUniqueId");
  symbols.need(api.comm_init_rank_config, "ncclCommInitRankConfig");
  symbols.need(api.comm_get_async_error, "ncclCommGetAsyncError");
  symbols.need(api.comm_abort, "ncclCommAbort");
  symbols.need(api.comm_finalize, "ncclCommFinalize");
  symbols.need(api.comm_destroy, "ncclCommDestroy");
  symbols.need(api.all_reduce, "ncclAllReduce");
  symbols.need(api.broadcast, "ncclBroadcast");
  symbols.need(api.reduce, "ncclReduce");
  symbols.need(api.all_gather, "ncclAllGather");
  symbols.need(api.reduce_scatter, "ncclReduceScatter");
  symbols.need(api.send, "ncclSend");
  symbols.need(api.recv, "ncclRecv");
  symbols.need(api.group_start, "ncclGroupStart");
  symbols.need(api.group_end, "ncclGroupEnd");
  symbols.need(api.red_op_create_premul_sum, "ncclRedOpCreatePreMulSum");
  symbols.need(api.red_op_destroy, "ncclRedOpDestroy");
  symbols.need(api.get_error_string, "ncclGetErrorString");
  symbols.need(api.get_last_error, "ncclGetLastError");
  return symbols.missing();
}

std::string load_cuda(const DynamicLibrary& library, cuda::Api& api) {
  Symbols symbols(library);
  symbols.need(api.get_device_count, "cudaGetDeviceCount");
  symbols.need(api.get_device, "cudaGetDevice");
  symbols.need(api.set_device, "cudaSetDevice");
  symbols.need(api.device_get_stream_priority_range, "cudaDeviceGetStreamPriorityRange");
  symbols.need(api.stream_create_with_priority, "cudaStreamCreateWithPriority");
  symbols.need(api.stream_destroy, "cudaStreamDestroy");
  symbols.need(api.stream_wait_event, "cudaStreamWaitEvent");
  symbols.need(api.stream_synchronize, "cudaStreamSynchronize");
  symbols.need(api.stream_is_capturing, "cudaStreamIsCapturing");
  symbols.need(api.thread_exchange_stream_capture_mode, "cudaThreadExchangeStreamCaptureMode");
  symbols.need(api.event_create_with_flags, "cudaEventCreateWithFlags");
  symbols.need(api.event_record, "cudaEventRecord");
  symbols.need(api.event_query, "cudaEventQuery");
  symbols.need(api.event_destroy, "cudaEventDestroy");
  symbols.need(api.malloc, "cudaMalloc");
  symbols.need(api.free, "cudaFree");
  symbols.need(api.memset, "cudaMemset");
  symbols.need(api.memcpy, "cudaMemcpy");
  symbols.need(api.get_error_string, "cudaGetErrorString");
  return symbols.missing();
}

}  // namespace

NcclLibraryNames NcclLibraryNames::from_environment() {
  return {variable("DDP_NCCL_LIBRARY"), variable("DDP_CUDART_LIBRARY")};
}

NcclLibrary::NcclLibrary()
    : nccl_(std::make_unique<nccl::api::Api>()), cuda_(std::make_unique<cuda::Api>()) {}

NcclLibrary::~NcclLibrary() = default;

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::load(const NcclLibraryNames& names) {
  using List = std::vector<std::string>;
  const auto nccl = DynamicLibrary::open(names.nccl.empty() ? List{"libnccl.so.2", "libnccl.so"}
                                                            : List{names.nccl});
  if (!nccl) {
    return make_error(Errc::kNotFound,
                      "cannot load NCCL: {}. Install it (package libnccl2 of NVIDIA's repository, "
                      "or the Python wheel nvidia-nccl), or set DDP_NCCL_LIBRARY to the path of "
                      "libnccl.so.2",
                      nccl.error().message);
  }
  const auto cudart =
      DynamicLibrary::open(names.cudart.empty() ? List{"libcudart.so.13", "libcudart.so.12",
                                                       "libcudart.so.11.0", "libcudart.so"}
                                                : List{names.cudart});
  if (!cudart) {
    return make_error(Errc::kNotFound,
                      "cannot load the CUDA runtime: {}. Install it (package cuda-cudart of "
                      "NVIDIA's repository, or the Python wheel nvidia-cuda-runtime), or set "
                      "DDP_CUDART_LIBRARY to the path of libcudart.so",
                      cudart.error().message);
  }
  std::shared_ptr<NcclLibrary> library(new NcclLibrary);
  if (const auto missing = load_nccl(*nccl, *library->nccl_); !missing.empty()) {
    return make_error(Errc::kInvalidArgument,
                      "{} has no function {}: NCCL 2.14 or newer is needed; set DDP_NCCL_LIBRARY "
                      "to the path of one",
                      nccl->name(), missing);
  }
  if (const auto missing = load_cuda(*cudart, *library->cuda_); !missing.empty()) {
    return make_error(Errc::kInvalidArgument,
                      "{} has no function {}: the runtime of CUDA 11 or newer is needed; set "
                      "DDP_CUDART_LIBRARY to the path of one",
                      cudart->name(), missing);
  }
  const nccl::api::Result got = library->nccl_->get_version(&library->version_);
  if (got != nccl::api::kSuccess) {
    return make_error(Errc::kIo, "{}: ncclGetVersion: {}", nccl->name(),
                      library->nccl_->get_error_string(got));
  }
  return std::shared_ptr<const NcclLibrary>(std::move(library));
}

Result<int> NcclLibrary::device_count() const {
  int count = 0;
  const cuda::Error error = cuda_->get_device_count(&count);
  if (error != cuda::kSuccess) {
    return make_error(Errc::kNotFound, "no CUDA device can be used: {} (cudaGetDeviceCount: {})",
                      cuda_->get_error_string(error), error);
  }
  return count;
}

std::string NcclLibrary::version_text() const {
  return fmt::format("{}.{}.{}", version_ / 10000, version_ % 10000 / 100, version_ % 100);
}

}  // namespace ddp
