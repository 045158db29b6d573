#pragma once

#include <stdexcept>

#include <dlfcn.h>
#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/dynamic_library.h"
#include "worker/nccl/cuda_api.h"
#include "worker/nccl/library.h"

// CUDA's functions that only tests call, from the file that the library's own ones are from.
namespace ddp::test {

using GraphHandle = struct OpaqueGraph*;  // cudaGraph_t and cudaGraphExec_t.

inline constexpr int kMemcpyDeviceToDevice = 3;
inline constexpr int kCaptureGlobal = 0;
inline constexpr int kCaptureThreadLocal = 1;

struct CudaFunctions {
  explicit CudaFunctions(const NcclLibrary& library) {
    Dl_info file{};
    DDP_CHECK(::dladdr(reinterpret_cast<void*>(library.cuda().malloc), &file) != 0, "no cudart");
    const auto opened = DynamicLibrary::open({file.dli_fname});
    DDP_CHECK(opened.has_value(), "{}", opened.error().message);
    Symbols symbols(*opened);
    symbols.need(memset_async, "cudaMemsetAsync");
    symbols.need(memcpy_async, "cudaMemcpyAsync");
    symbols.need(stream_begin_capture, "cudaStreamBeginCapture");
    symbols.need(stream_end_capture, "cudaStreamEndCapture");
    symbols.need(graph_instantiate, "cudaGraphInstantiate");
    symbols.need(graph_launch, "cudaGraphLaunch");
    symbols.need(graph_destroy, "cudaGraphDestroy");
    symbols.need(graph_exec_destroy, "cudaGraphExecDestroy");
    DDP_CHECK(symbols.missing().empty(), "no {}", symbols.missing());
  }

  cuda::Error (*memset_async)(void* memory, int value, std::size_t bytes, cuda::Stream stream);
  cuda::Error (*memcpy_async)(void* to, const void* from, std::size_t bytes, int kind,
                              cuda::Stream stream);
  cuda::Error (*stream_begin_capture)(cuda::Stream stream, int mode);
  cuda::Error (*stream_end_capture)(cuda::Stream stream, GraphHandle* graph);
  cuda::Error (*graph_instantiate)(GraphHandle* executable, GraphHandle graph,
                                   unsigned long long flags);  // Since CUDA 12.
  cuda::Error (*graph_launch)(GraphHandle executable, cuda::Stream stream);
  cuda::Error (*graph_destroy)(GraphHandle graph);
  cuda::Error (*graph_exec_destroy)(GraphHandle executable);
};

// A stream of the current device.
class DeviceStream {
 public:
  explicit DeviceStream(const NcclLibrary& library) : library_(library) {
    const auto error =
        library_.cuda().stream_create_with_priority(&stream_, cuda::kStreamNonBlocking, 0);
    DDP_CHECK(error == cuda::kSuccess, "cudaStreamCreateWithPriority: {}", error);
  }
  ~DeviceStream() { library_.cuda().stream_destroy(stream_); }
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  cuda::Stream get() const { return stream_; }
  void synchronize() const {
    const auto error = library_.cuda().stream_synchronize(stream_);
    DDP_CHECK(error == cuda::kSuccess, "cudaStreamSynchronize: {}", error);
  }

 private:
  const NcclLibrary& library_;
  cuda::Stream stream_ = nullptr;
};

// Captures what a stream is given between its creation and finish() as a graph. Destroy it before
// the groups whose operations it holds: NCCL waits for that.
class Recording {
 public:
  Recording(const CudaFunctions& cuda, cuda::Stream stream, int mode)
      : cuda_(cuda), stream_(stream) {
    expect_success(cuda_.stream_begin_capture(stream, mode));
  }
  ~Recording() {
    if (!finished_) cuda_.stream_end_capture(stream_, &graph_);
    if (graph_ != nullptr) cuda_.graph_destroy(graph_);
    if (executable_ != nullptr) cuda_.graph_exec_destroy(executable_);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void finish() {
    finished_ = true;
    expect_success(cuda_.stream_end_capture(stream_, &graph_));
    expect_success(cuda_.graph_instantiate(&executable_, graph_, 0));
  }
  void launch() const { expect_success(cuda_.graph_launch(executable_, stream_)); }

 private:
  static void expect_success(cuda::Error error) {
    if (error != cuda::kSuccess) throw std::runtime_error(fmt::format("CUDA error {}", error));
  }

  const CudaFunctions& cuda_;
  const cuda::Stream stream_;
  bool finished_ = false;
  GraphHandle graph_ = nullptr;
  GraphHandle executable_ = nullptr;
};

}  // namespace ddp::test
