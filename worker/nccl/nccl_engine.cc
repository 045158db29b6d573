#include "worker/nccl/nccl_engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "common/base/errc.h"
#include "worker/nccl/failure_text.h"

namespace ddp::nccl {
namespace {

// A waiter acts in place of a stuck watchdog this long after the deadline.
constexpr Duration kWatchdogGrace{1000};

}  // namespace

std::shared_ptr<NcclEngine> NcclEngine::start(std::shared_ptr<const NcclLibrary> library,
                                              NcclEngineOptions options) {
  auto engine = std::make_shared<NcclEngine>(std::move(library), std::move(options));
  engine->communication_ = std::thread([engine] { engine->run_communication(); });
  engine->watchdog_ = std::thread([engine] { engine->run_watchdog(); });
  return engine;
}

NcclEngine::NcclEngine(std::shared_ptr<const NcclLibrary> library, NcclEngineOptions options)
    : library_(std::move(library)),
      options_(std::move(options)),
      communicator_(library_, options_.rank, options_.size),
      events_(library_, options_.device) {}

// No thread is inside any more. After a device failure these calls fail, too; nothing can be done
// about it.
NcclEngine::~NcclEngine() {
  const DeviceGuard guard(library_->cuda(), options_.device);
  if (scratch_ != nullptr) library_->cuda().free(scratch_);
  if (stream_ != nullptr) library_->cuda().stream_destroy(stream_);
}

bool NcclEngine::wait_for(Stage stage, TimePoint limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, limit, [&] { return stage_ >= stage || failure_; });
  return stage_ >= stage && !failure_;
}

void NcclEngine::connect(const nccl::api::UniqueId& id) {
  {
    const std::lock_guard lock(mutex_);
    id_ = id;
  }
  changed_.notify_all();
}

Outcome NcclEngine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// Events of a capture mean nothing to the host, and stay with the capture: they are new, and are
// neither queried nor used again.
cuda::Error NcclEngine::record(cuda::Event& event, cuda::Stream stream, bool captured) {
  const cuda::Error error = captured ? events_.make_new(event) : events_.acquire(event);
  return error != cuda::kSuccess ? error : library_->cuda().event_record(event, stream);
}

cuda::Error NcclEngine::mark_ready(DeviceOperation& operation, cuda::Stream stream) {
  if (stream != nullptr) {  // The default stream cannot be captured.
    int capture = cuda::kCaptureNone;
    const cuda::Error error = library_->cuda().stream_is_capturing(stream, &capture);
    if (error != cuda::kSuccess) return error;
    operation.captured = capture != cuda::kCaptureNone;
  }
  return record(operation.ready, stream, operation.captured);
}

std::shared_ptr<DeviceWork> NcclEngine::issue(DeviceOperation operation, cuda::Stream stream,
                                              std::function<void(std::exception_ptr)> on_done) {
  if (const Outcome known = failure()) throw CollectiveError(*known);
  const DeviceGuard guard(library_->cuda(), options_.device);
  const cuda::Error error = mark_ready(operation, stream);
  if (error != cuda::kSuccess) {
    fail(cuda_failure(*library_, "cudaEventRecord on the caller's stream", error, options_.rank),
         Tell::kYes);
    throw CollectiveError(*failure());
  }
  std::shared_ptr<DeviceWork> work;
  bool is_first = false;
  bool is_next = false;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      events_.give_back(operation.ready);
      throw CollectiveError(*failure_);
    }
    operation.sequence = sequence_++;
    work = std::make_shared<DeviceWork>(weak_from_this(), std::move(operation), std::move(on_done));
    is_first = queue_.empty() && running_.empty();
    is_next = stage_ == Stage::kReady && queue_.empty() && !launching_;
    if (is_next) {
      launching_ = true;
      running_.push_back(work);
    } else {
      queue_.push_back(work);
    }
  }
  if (is_first) watch_changed_.notify_all();
  if (is_next) {
    launch(*work);
    end_launch();
  } else {
    changed_.notify_all();
  }
  // A graph is built by one thread at a time.
  if (work->operation().captured) {
    work->wait();
    work->tell();
  }
  return work;
}

// Most operations are launched by their caller, with nobody waiting: a wake-up would cost each of
// them.
void NcclEngine::end_launch() {
  bool is_awaited = false;
  {
    const std::lock_guard lock(mutex_);
    launching_ = false;
    is_awaited = !queue_.empty() || failure_ || closing_;
  }
  if (is_awaited) changed_.notify_all();
}

void NcclEngine::fail(Failure failure, Tell tell) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || closed_) return;
    failure_ = failure;
    failed_at_ = Clock::now();
    failed_.store(true, std::memory_order_release);
    abort_ = std::thread([self = shared_from_this()] { self->run_abort(); });
  }
  changed_.notify_all();
  watch_changed_.notify_all();
  if (tell == Tell::kYes && options_.on_failure) options_.on_failure(failure);
}

void NcclEngine::fail_named(const DeviceWork* work, Failure failure) {
  if (work != nullptr && !failure.told) {
    failure.text = fmt::format("{}: {}", work->name(), failure.text);
  }
  fail(std::move(failure), Tell::kYes);
}

// ---- The communication thread.

// The engine's calls do not disturb a graph that another thread of the process is capturing.
void NcclEngine::begin_thread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
  library_->cuda().set_device(options_.device);
  int mode = cuda::kCaptureRelaxed;
  library_->cuda().thread_exchange_stream_capture_mode(&mode);
}

void NcclEngine::reach(Stage stage) {
  {
    const std::lock_guard lock(mutex_);
    stage_ = stage;
  }
  changed_.notify_all();
}

void NcclEngine::run_communication() {
  begin_thread("ddp-nccl");
  auto failure = prepare();
  if (!failure) failure = connect_when_told();
  if (failure) {
    fail(std::move(*failure), Tell::kYes);
  } else {
    reach(Stage::kReady);
    while (const WorkPtr work = next_work()) {
      launch(*work);
      end_launch();
    }
    if (!failed_.load()) {
      if (auto problem = communicator_.close()) fail(std::move(*problem), Tell::kNo);
    }
  }
  const std::lock_guard lock(mutex_);
  communication_ended_ = true;
  changed_.notify_all();
}

Outcome NcclEngine::prepare() {
  const cuda::Api& api = library_->cuda();
  const auto failed = [&](const char* call, cuda::Error error) {
    return cuda_failure(*library_, call, error, options_.rank);
  };
  cuda::Error error = api.set_device(options_.device);
  if (error != cuda::kSuccess) {
    return failed(fmt::format("cudaSetDevice({})", options_.device).c_str(), error);
  }
  int least = 0;
  int greatest = 0;
  error = api.device_get_stream_priority_range(&least, &greatest);
  if (error != cuda::kSuccess) return failed("cudaDeviceGetStreamPriorityRange", error);
  // Other ranks wait for communication, so it gets priority over queued computation.
  error = api.stream_create_with_priority(&stream_, cuda::kStreamNonBlocking,
                                          options_.high_priority ? greatest : least);
  if (error != cuda::kSuccess) return failed("cudaStreamCreateWithPriority", error);
  error = api.malloc(&scratch_, sizeof(std::int32_t));
  if (error == cuda::kSuccess) error = api.memset(scratch_, 0, sizeof(std::int32_t));
  if (error != cuda::kSuccess) return failed("cudaMalloc of 4 bytes", error);
  return std::nullopt;
}

Outcome NcclEngine::connect_when_told() {
  reach(Stage::kPrepared);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return id_ || failure_ || closing_; });
    if (failure_) return failure_;
    if (!id_) return Failure{Errc::kAborted, options_.rank, "the group ended before it connected"};
  }
  reach(Stage::kConnecting);
  return communicator_.init(*id_);
}

NcclEngine::WorkPtr NcclEngine::next_work() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || (!launching_ && (!queue_.empty() || closing_)); });
  if (failure_ || queue_.empty()) return nullptr;
  launching_ = true;
  running_.push_back(std::move(queue_.front()));
  queue_.pop_front();
  return running_.back();
}

void NcclEngine::launch(DeviceWork& work) {
  if (auto failure = put_into_stream(work)) {
    fail_named(&work, std::move(*failure));
  } else if (work.operation().captured) {
    succeed(work);
  }
}

Outcome NcclEngine::put_into_stream(DeviceWork& work) {
  const cuda::Api& api = library_->cuda();
  const DeviceOperation& operation = work.operation();
  cuda::Error error = api.stream_wait_event(stream_, operation.ready, 0);
  if (error != cuda::kSuccess) {
    return cuda_failure(*library_, "cudaStreamWaitEvent", error, options_.rank);
  }
  // The stream remembers what the event stood for.
  if (!operation.captured) events_.give_back(operation.ready);
  if (auto failure = communicator_.enqueue(operation, scratch_, stream_)) return failure;
  cuda::Event completed = nullptr;
  error = record(completed, stream_, operation.captured);
  if (error != cuda::kSuccess) {
    return cuda_failure(*library_, "cudaEventRecord", error, options_.rank);
  }
  work.completed_ = completed;
  work.enqueued_.store(true, std::memory_order_release);
  return std::nullopt;
}

// ---- Completion.

bool NcclEngine::poll(DeviceWork& work) {
  if (work.done()) return true;
  if (work.operation().captured) return false;
  if (!work.enqueued_.load(std::memory_order_acquire)) return false;
  const cuda::Error error = library_->cuda().event_query(work.completed_);
  if (error == cuda::kNotReady) return false;
  if (error != cuda::kSuccess) {
    fail_named(&work, cuda_failure(*library_, "the device", error, options_.rank));
    return false;
  }
  // A kernel may also end because of an error.
  if (auto failure = communicator_.async_error()) {
    fail_named(&work, std::move(*failure));
    return false;
  }
  finish(work);
  return work.done();
}

void NcclEngine::finish(DeviceWork& work) {
  if (!succeed(work)) return;
  {
    const std::lock_guard lock(order_mutex_);
    events_.give_back(work.completed_);
  }
  work.tell();
}

// False if another thread was quicker.
bool NcclEngine::succeed(DeviceWork& work) {
  const std::lock_guard lock(mutex_);
  // After a failure the abort may have ended the kernel.
  if (failure_ || work.done()) return false;
  const auto place = std::find_if(running_.begin(), running_.end(),
                                  [&](const WorkPtr& each) { return each.get() == &work; });
  // The caller holds another reference to it during the call.
  if (place != running_.end()) running_.erase(place);
  work.state_.store(DeviceWork::kSucceeded, std::memory_order_release);
  return true;
}

void NcclEngine::order_behind(DeviceWork& work, cuda::Stream stream) {
  const std::lock_guard lock(order_mutex_);
  if (work.done() && !work.operation().captured) return;
  const cuda::Error error = library_->cuda().stream_wait_event(stream, work.completed_, 0);
  if (error == cuda::kSuccess) return;
  throw CollectiveError(
      cuda_failure(*library_, "cudaStreamWaitEvent on the caller's stream", error, options_.rank));
}

void NcclEngine::advance(DeviceWork& work) {
  if (failed_.load(std::memory_order_acquire)) {
    settle();
    return;
  }
  if (poll(work)) return;
  if (Clock::now() > work.operation().deadline + kWatchdogGrace) expire();
}

}  // namespace ddp::nccl
