#include <algorithm>

#include "tests/support/nccl_standin/state.h"

// CUDA's graphs: streams that record what they are given, and launches of what they have recorded.
namespace ddp::standin {
namespace {

constexpr int kGlobal = 0;  // Modes of a capture and of a thread.
constexpr int kRelaxed = 2;
constexpr cuda::Error kInvalidated = 901;
constexpr cuda::Error kUnmatched = 903;
constexpr cuda::Error kUnjoined = 904;
constexpr cuda::Error kIsolation = 906;
constexpr cuda::Error kWrongThread = 910;
constexpr cuda::Error kNoHandle = 400;

std::vector<Stream*> streams_of(const std::shared_ptr<Capture>& capture) {
  std::vector<Stream*> found;
  for (Stream* stream : state().streams) {
    if (stream->recorded.capture == capture) found.push_back(stream);
  }
  return found;
}

// Every node is behind something or is what the origin waits for.
bool joined(const Graph& graph, std::set<std::size_t> last) {
  for (const Node& node : graph.nodes) last.insert(node.after.begin(), node.after.end());
  return last.size() == graph.nodes.size();
}

// An order that the graph allows. A node that may run early does, so that a dependency that is
// missing shows.
std::vector<std::size_t> order_of(const Graph& graph) {
  std::vector<std::size_t> order;
  std::set<std::size_t> done;
  while (order.size() < graph.nodes.size()) {
    for (std::size_t i = graph.nodes.size(); i-- > 0;) {
      const auto& after = graph.nodes[i].after;
      if (done.count(i) != 0 ||
          !std::includes(done.begin(), done.end(), after.begin(), after.end()))
        continue;
      done.insert(i);
      order.push_back(i);
      break;
    }
  }
  return order;
}

Graph* keep(Graph graph) {
  auto* made = new Graph(std::move(graph));
  state().graphs.insert(made);
  return made;
}

cuda::Error destroy(Graph* graph) {
  const Lock lock(state().mutex);
  if (state().graphs.erase(graph) == 0) return kNoHandle;
  delete graph;
  return cuda::kSuccess;
}

}  // namespace

int& capture_mode() {
  thread_local int mode = kGlobal;
  return mode;
}

void invalidate(const CapturePoint& point, const std::string& why) {
  state().violation(why);
  if (point.capture != nullptr) point.capture->invalid = true;
}

cuda::Error forbidden_in_capture(const char* call) {
  for (const auto& capture : state().captures) {
    if (capture_mode() == kRelaxed || capture->mode == kRelaxed) continue;
    const bool everywhere = capture_mode() == kGlobal && capture->mode == kGlobal;
    if (capture->thread != std::this_thread::get_id() && !everywhere) continue;
    invalidate({capture, {}}, std::string(call) + " while a stream is captured");
    return kCaptureUnsupported;
  }
  return cuda::kSuccess;
}

cuda::Error wait_in_capture(Stream& stream, const Event& event) {
  const auto& [capture, last] = event.recorded;
  const bool active = capture != nullptr && !capture->ended;
  if (stream.recorded.capture == nullptr && active) stream.recorded.capture = capture;
  if (!active || stream.recorded.capture != capture) {
    invalidate(stream.recorded, "a stream waits for something on the other side of a capture");
    return kIsolation;
  }
  stream.recorded.last.insert(last.begin(), last.end());
  return cuda::kSuccess;
}

}  // namespace ddp::standin

namespace cuda = ddp::cuda;
namespace standin = ddp::standin;
using ddp::cuda::Error;
using ddp::standin::capture_mode;
using ddp::standin::Graph;
using ddp::standin::Lock;
using ddp::standin::state;
using ddp::standin::Stream;
using ddp::standin::stream_of;

STANDIN_API Error cudaThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(capture_mode(), *mode);
  return cuda::kSuccess;
}

STANDIN_API Error cudaStreamIsCapturing(cuda::Stream handle, int* status) {
  const Lock lock(state().mutex);
  const Stream* stream = stream_of(handle);
  if (stream == nullptr) return standin::kNoHandle;
  const auto& capture = stream->recorded.capture;
  *status = capture == nullptr ? cuda::kCaptureNone : capture->invalid ? 2 : 1;
  return cuda::kSuccess;
}

STANDIN_API Error cudaStreamBeginCapture(cuda::Stream handle, int mode) {
  const Lock lock(state().mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return standin::kNoHandle;
  // The default stream cannot be captured.
  if (handle == nullptr || stream->recorded.capture != nullptr) return standin::kCaptureUnsupported;
  const auto capture = std::make_shared<standin::Capture>();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  stream->recorded = {capture, {}};
  state().captures.insert(capture);
  return cuda::kSuccess;
}

STANDIN_API Error cudaStreamEndCapture(cuda::Stream handle, Graph** graph) {
  const Lock lock(state().mutex);
  *graph = nullptr;
  const Stream* stream = stream_of(handle);
  if (stream == nullptr) return standin::kNoHandle;
  const auto [capture, last] = stream->recorded;
  if (capture == nullptr || capture->origin != stream) return standin::kUnmatched;
  if (capture->mode != standin::kRelaxed && capture->thread != std::this_thread::get_id()) {
    return standin::kWrongThread;
  }
  for (Stream* each : standin::streams_of(capture)) each->recorded = {};
  capture->ended = true;
  state().captures.erase(capture);
  if (capture->invalid) return standin::kInvalidated;
  if (!standin::joined(capture->graph, last)) return standin::kUnjoined;
  *graph = standin::keep(std::move(capture->graph));
  return cuda::kSuccess;
}

STANDIN_API Error cudaGraphInstantiate(Graph** executable, Graph* graph,
                                       unsigned long long /*flags*/) {
  const Lock lock(state().mutex);
  if (state().graphs.count(graph) == 0) return standin::kNoHandle;
  *executable = standin::keep(*graph);
  return cuda::kSuccess;
}

STANDIN_API Error cudaGraphLaunch(Graph* executable, cuda::Stream handle) {
  const Lock lock(state().mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr || state().graphs.count(executable) == 0) return standin::kNoHandle;
  for (const std::size_t node : standin::order_of(*executable)) {
    standin::push_step(*stream, executable->nodes[node].step);
  }
  return cuda::kSuccess;
}

STANDIN_API Error cudaGraphDestroy(Graph* graph) { return standin::destroy(graph); }

STANDIN_API Error cudaGraphExecDestroy(Graph* executable) { return standin::destroy(executable); }
