#include <cstdlib>

#include "tests/support/nccl_standin/state.h"

// The CUDA runtime's part. Streams are threads with a queue, events are flags that a stream sets.
namespace ddp::standin {
namespace {

constexpr int kDevices = 8;
constexpr int kInvalidValue = 1;
constexpr int kInvalidHandle = 400;

void run_stream(Stream* stream) {
  State& all = state();
  Lock lock(all.mutex);
  for (;;) {
    all.changed.wait(lock, [&] { return !stream->tasks.empty() || stream->closing; });
    if (stream->tasks.empty()) return;
    const Task task = std::move(stream->tasks.front());
    stream->tasks.pop_front();
    task(lock);
    all.changed.notify_all();
  }
}

Stream* make_stream(int device) {
  auto* stream = new Stream;
  stream->device = device;
  stream->thread = std::thread(run_stream, stream);
  return stream;
}

Event* event_of(cuda::Event handle) {
  auto* event = reinterpret_cast<Event*>(handle);
  if (state().events.count(event) != 0) return event;
  state().violation("an event that does not exist is used");
  return nullptr;
}

}  // namespace

State& state() {
  static auto& all = *new State;
  return all;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

Stream* stream_of(cuda::Stream handle) {
  State& all = state();
  if (handle == nullptr) {
    Stream*& stream = all.default_streams[current_device()];
    if (stream == nullptr) stream = make_stream(current_device());
    return stream;
  }
  auto* stream = reinterpret_cast<Stream*>(handle);
  if (all.streams.count(stream) != 0) return stream;
  all.violation("a stream that does not exist is used");
  return nullptr;
}

void push_step(Stream& stream, const Step& step) {
  auto& [capture, last] = stream.recorded;
  if (capture != nullptr) {
    capture->graph.nodes.push_back({step, last});
    last = {capture->graph.nodes.size() - 1};
    return;
  }
  stream.tasks.push_back(step());
  state().changed.notify_all();
}

void push_task(Stream& stream, const Task& task) {
  push_step(stream, [task] { return task; });
}

}  // namespace ddp::standin

using ddp::cuda::Error;
using ddp::standin::current_device;
using ddp::standin::Event;
using ddp::standin::forbidden_in_capture;
using ddp::standin::kInvalidHandle;
using ddp::standin::kInvalidValue;
using ddp::standin::Lock;
using ddp::standin::push_task;
using ddp::standin::state;
using ddp::standin::Stream;
using ddp::standin::stream_of;
namespace cuda = ddp::cuda;

STANDIN_API Error cudaGetDeviceCount(int* count) {
  *count = ddp::standin::kDevices;
  return cuda::kSuccess;
}

STANDIN_API Error cudaGetDevice(int* device) {
  *device = current_device();
  return cuda::kSuccess;
}

STANDIN_API Error cudaSetDevice(int device) {
  if (device < 0 || device >= ddp::standin::kDevices) return 101;  // Invalid device ordinal.
  current_device() = device;
  return cuda::kSuccess;
}

STANDIN_API Error cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cuda::kSuccess;
}

STANDIN_API Error cudaStreamCreateWithPriority(cuda::Stream* stream, unsigned /*flags*/,
                                               int priority) {
  if (priority > 0 || priority < -5) return kInvalidValue;
  Stream* made = ddp::standin::make_stream(current_device());
  const Lock lock(state().mutex);
  state().streams.insert(made);
  *stream = reinterpret_cast<cuda::Stream>(made);
  return cuda::kSuccess;
}

STANDIN_API Error cudaStreamDestroy(cuda::Stream handle) {
  Stream* stream = nullptr;
  {
    const Lock lock(state().mutex);
    stream = stream_of(handle);
    if (stream == nullptr || handle == nullptr) return kInvalidHandle;
    state().streams.erase(stream);
    stream->closing = true;
    state().changed.notify_all();
  }
  stream->thread.join();
  delete stream;
  return cuda::kSuccess;
}

STANDIN_API Error cudaStreamSynchronize(cuda::Stream handle) {
  Lock lock(state().mutex);
  if (const Error error = forbidden_in_capture("cudaStreamSynchronize")) return error;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->recorded.capture != nullptr) {
    ddp::standin::invalidate(stream->recorded, "the host waits for a stream that is captured");
    return ddp::standin::kCaptureUnsupported;
  }
  auto reached = std::make_shared<bool>(false);
  push_task(*stream, [reached](Lock&) { *reached = true; });
  state().changed.wait(lock, [&] { return *reached; });
  return cuda::kSuccess;
}

STANDIN_API Error cudaStreamWaitEvent(cuda::Stream stream_handle, cuda::Event event_handle,
                                      unsigned /*flags*/) {
  const Lock lock(state().mutex);
  Stream* stream = stream_of(stream_handle);
  const Event* event = ddp::standin::event_of(event_handle);
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  if (stream->recorded.capture != nullptr || event->recorded.capture != nullptr) {
    return ddp::standin::wait_in_capture(*stream, *event);
  }
  if (event->reached == nullptr) return cuda::kSuccess;
  push_task(*stream, [reached = event->reached](Lock& held) {
    state().changed.wait(held, [&] { return *reached; });
  });
  return cuda::kSuccess;
}

STANDIN_API Error cudaEventCreateWithFlags(cuda::Event* event, unsigned flags) {
  if (flags != cuda::kEventDisableTiming) return kInvalidValue;
  const Lock lock(state().mutex);
  auto* made = new Event;
  made->device = current_device();
  state().events.insert(made);
  *event = reinterpret_cast<cuda::Event>(made);
  return cuda::kSuccess;
}

STANDIN_API Error cudaEventRecord(cuda::Event event_handle, cuda::Stream stream_handle) {
  const Lock lock(state().mutex);
  Stream* stream = stream_of(stream_handle);
  Event* event = ddp::standin::event_of(event_handle);
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  if (stream->device != event->device) {
    state().violation("an event of one device is recorded in a stream of another");
    return kInvalidHandle;
  }
  event->recorded = stream->recorded;
  event->reached = nullptr;
  if (event->recorded.capture != nullptr) return cuda::kSuccess;
  event->reached = std::make_shared<bool>(false);
  push_task(*stream, [reached = event->reached](Lock&) { *reached = true; });
  return cuda::kSuccess;
}

STANDIN_API Error cudaEventQuery(cuda::Event event_handle) {
  const Lock lock(state().mutex);
  if (const Error error = forbidden_in_capture("cudaEventQuery")) return error;
  const Event* event = ddp::standin::event_of(event_handle);
  if (event == nullptr) return kInvalidHandle;
  if (event->recorded.capture != nullptr) {
    ddp::standin::invalidate(event->recorded, "an event of a capture is queried");
    return ddp::standin::kCapturedEvent;
  }
  const auto failed = state().failed_devices.find(event->device);
  if (failed != state().failed_devices.end()) return failed->second;
  return event->reached == nullptr || *event->reached ? cuda::kSuccess : cuda::kNotReady;
}

STANDIN_API Error cudaEventDestroy(cuda::Event event_handle) {
  const Lock lock(state().mutex);
  Event* event = ddp::standin::event_of(event_handle);
  if (event == nullptr) return kInvalidHandle;
  state().events.erase(event);
  delete event;
  return cuda::kSuccess;
}

STANDIN_API Error cudaMalloc(void** memory, std::size_t bytes) {
  if (bytes > (std::size_t{1} << 32)) return 2;  // Out of memory.
  const Lock lock(state().mutex);
  if (const Error error = forbidden_in_capture("cudaMalloc")) return error;
  *memory = std::malloc(bytes);
  state().memory.insert(*memory);
  return cuda::kSuccess;
}

STANDIN_API Error cudaFree(void* memory) {
  const Lock lock(state().mutex);
  if (const Error error = forbidden_in_capture("cudaFree")) return error;
  if (state().memory.erase(memory) == 0) {
    state().violation("memory that was not allocated is freed");
    return kInvalidValue;
  }
  std::free(memory);
  return cuda::kSuccess;
}

STANDIN_API Error cudaMemset(void* memory, int value, std::size_t bytes) {
  {
    const Lock lock(state().mutex);
    if (const Error error = forbidden_in_capture("cudaMemset")) return error;
  }
  if (bytes > 0) std::memset(memory, value, bytes);
  return cuda::kSuccess;
}

STANDIN_API Error cudaMemcpy(void* to, const void* from, std::size_t bytes, int /*kind*/) {
  {
    const Lock lock(state().mutex);
    if (const Error error = forbidden_in_capture("cudaMemcpy")) return error;
  }
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cuda::kSuccess;
}

STANDIN_API Error cudaMemsetAsync(void* memory, int value, std::size_t bytes, cuda::Stream handle) {
  const Lock lock(state().mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidHandle;
  push_task(*stream, [=](Lock&) { std::memset(memory, value, bytes); });
  return cuda::kSuccess;
}

STANDIN_API Error cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int /*kind*/,
                                  cuda::Stream handle) {
  const Lock lock(state().mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidHandle;
  push_task(*stream, [=](Lock&) { std::memcpy(to, from, bytes); });
  return cuda::kSuccess;
}

STANDIN_API const char* cudaGetErrorString(Error error) {
  return error == 700 ? "an illegal memory access was encountered" : "a stand-in's CUDA error";
}
