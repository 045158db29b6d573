#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "worker/nccl/nccl_api.h"

#define STANDIN_API extern "C" __attribute__((visibility("default")))

// One lock and one condition variable guard everything. Tasks of streams run under the lock, and
// release it while they wait.
namespace ddp::standin {

// CUDA's errors.
inline constexpr cuda::Error kCaptureUnsupported = 900;
inline constexpr cuda::Error kCapturedEvent = 907;

using Lock = std::unique_lock<std::mutex>;
using Task = std::function<void(Lock&)>;
// Makes the task whenever it is put into a stream: once, or at each launch of a graph.
using Step = std::function<Task()>;

struct Node {
  Step step;
  std::set<std::size_t> after;  // Nodes.
};

// What cudaGraph_t and cudaGraphExec_t point to.
struct Graph {
  std::vector<Node> nodes;
};

struct Stream;

struct Capture {
  Graph graph;
  const Stream* origin = nullptr;
  int mode = 0;  // Of cudaStreamBeginCapture.
  std::thread::id thread;
  bool invalid = false;
  bool ended = false;
};

// A place in a capture: what comes next depends on these nodes.
struct CapturePoint {
  std::shared_ptr<Capture> capture;  // Null: outside of a capture.
  std::set<std::size_t> last;
};

struct Stream {
  int device = 0;
  bool closing = false;
  std::deque<Task> tasks;
  CapturePoint recorded;
  std::thread thread;
};

struct Event {
  int device = 0;
  std::shared_ptr<bool> reached;  // Null: never recorded, or in a capture.
  CapturePoint recorded;
};

struct CollectiveCall {
  int kind = 0;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  int type = 0;
  int op = 0;
  int root = 0;
  double factor = 1.0;  // For a premultiplied sum.
};

// All ranks of one collective.
struct Meeting {
  std::map<int, CollectiveCall> calls;
  int computed = 0;
  int left = 0;
};

struct Message {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool taken = false;
};

struct World {
  int size = 0;
  std::set<int> arrived;
  std::set<int> devices;
  std::set<int> finalized;
  std::map<std::uint64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> mail;  // From, to.
};

struct Comm {
  std::shared_ptr<World> world;
  int rank = 0;
  int device = 0;
  bool live = true;
  bool aborted = false;
  bool in_call = false;
  std::uint64_t collectives = 0;
  std::map<int, double> factors;  // By operation that was created.
  int next_op = 16;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;

  // All handles ever given out. Objects are never freed, so that stale handles are recognised.
  std::set<Stream*> streams;
  std::set<Event*> events;
  std::set<Graph*> graphs;
  std::set<std::shared_ptr<Capture>> captures;  // Those in progress.
  std::set<void*> memory;
  std::set<Comm*> comms;
  std::map<int, Stream*> default_streams;  // By device.
  std::map<std::string, std::shared_ptr<World>> worlds;
  std::uint64_t ids = 0;
  int running_kernels = 0;

  std::map<int, int> failed_ranks;
  std::set<int> hung_kernels;
  std::set<int> hung_inits;
  std::set<int> hung_aborts;
  std::map<int, int> failed_devices;
  int released = 0;
  int linger_ms = 0;
  int launch_delay_ms = 0;
  int unique_id_result = 0;
  std::string violations;

  void violation(const std::string& text) { violations += text + "\n"; }
};

State& state();

// The calling thread's.
int& current_device();
// Null if there is no such stream; then it also records a violation.
Stream* stream_of(cuda::Stream handle);
// Under the lock, as what follows. Records the step if the stream is in a capture.
void push_step(Stream& stream, const Step& step);
void push_task(Stream& stream, const Task& task);

// The calling thread's, of cudaThreadExchangeStreamCaptureMode.
int& capture_mode();
// For calls that CUDA forbids while a stream is captured: the error if it is forbidden now.
cuda::Error forbidden_in_capture(const char* call);
// Something that ends the capture, if there is one.
void invalidate(const CapturePoint& point, const std::string& why);
// cudaStreamWaitEvent if one of them is in a capture.
cuda::Error wait_in_capture(Stream& stream, const Event& event);

// Kernels; `comm` stays valid. Both run on a stream's thread, under the lock.
void run_collective(Lock& lock, Comm& comm, std::uint64_t number, const CollectiveCall& call);
struct PeerTransfer {
  bool sends = false;
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};
void run_transfers(Lock& lock, Comm& comm, const std::vector<PeerTransfer>& transfers);

std::size_t bytes_of(int type);
// The value of one element.
double factor_of(const void* element, int type);

}  // namespace ddp::standin
