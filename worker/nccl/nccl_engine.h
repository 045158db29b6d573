#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "worker/nccl/communicator.h"
#include "worker/nccl/device_work.h"
#include "worker/nccl/event_pool.h"

namespace ddp::nccl {

struct NcclEngineOptions {
  Rank rank = 0;
  int size = 1;
  int device = 0;
  bool high_priority = true;
  Duration abort_grace{10'000};
  Duration close_timeout{30'000};
  // Called once, without locks, by the thread that found the first failure of this engine, unless
  // it came from fail(..., Tell::kNo).
  std::function<void(const Failure&)> on_failure;
  // Asked by the watchdog whenever it looks: a failure of these ranks that something else has seen.
  std::function<Outcome()> failure_elsewhere;
};

// The engine behind an NcclGroup: its threads, its stream and its communicator.
//
//   ddp-nccl        makes the communicator, puts operations into the stream in order of issue, ends
//                   the communicator. A caller whose operation is the next one puts it there itself
//   ddp-nccl-watch  looks at completion, asynchronous errors and deadlines: every 5 ms while
//                   something is pending, else every 100 ms. A waiter looks at its own operation
//                   more often, and in place of a watchdog that is stuck.
//   ddp-nccl-abort  started by the first failure: ends the communicator, which may block
//
// Nobody waits for a thread whose call does not return: it keeps the engine alive and is parked
// (common/process/parked_threads.h).
//
// Failure: every pending and later operation fails with the first cause. Pending operations fail
// when the communicator is gone and the device no longer uses their buffers, or after abort_grace;
// the text says which.
class NcclEngine final : public std::enable_shared_from_this<NcclEngine> {
 public:
  enum class Tell { kNo, kYes };
  enum class Stage { kPreparing, kPrepared, kConnecting, kReady };

  // Starts the threads. ddp-nccl prepares the device.
  static std::shared_ptr<NcclEngine> start(std::shared_ptr<const NcclLibrary> library,
                                           NcclEngineOptions options);
  // For start().
  NcclEngine(std::shared_ptr<const NcclLibrary> library, NcclEngineOptions options);
  NcclEngine(const NcclEngine&) = delete;
  NcclEngine& operator=(const NcclEngine&) = delete;
  ~NcclEngine();

  // Any thread may call the rest.

  // Whether that stage has been reached by `limit`. Throws nothing: see failure().
  bool wait_for(Stage stage, TimePoint limit);
  // Once it is prepared: ddp-nccl connects the ranks. Call it when all of them are there, because
  // it cannot be aborted: if it hangs, its thread is parked.
  void connect(const nccl::api::UniqueId& id);
  // Queues the operation; throws CollectiveError after a failure. `stream`: the caller's stream,
  // which produces the operation's input. on_done: OpOptions::on_done. If the stream is capturing a
  // graph, the operation is in the graph when the call returns.
  std::shared_ptr<DeviceWork> issue(DeviceOperation operation, cuda::Stream stream,
                                    std::function<void(std::exception_ptr)> on_done);
  // Only the first failure counts. Returns at once.
  void fail(Failure failure, Tell tell);
  Outcome failure() const;
  // The operations' stream, once the engine is ready.
  cuda::Stream stream() const { return stream_; }
  // Ends the threads: in agreement with the other ranks if all operations are done, else by an
  // abort. Takes at most close_timeout and abort_grace.
  void close();

  // For DeviceWork. Checks once whether the operation is done, has failed or is past its deadline.
  void advance(DeviceWork& work);
  void order_behind(DeviceWork& work, cuda::Stream stream);

 private:
  using WorkPtr = std::shared_ptr<DeviceWork>;

  void begin_thread(const char* name);
  cuda::Error mark_ready(DeviceOperation& operation, cuda::Stream stream);
  cuda::Error record(cuda::Event& event, cuda::Stream stream, bool captured);
  void run_communication();
  Outcome prepare();
  Outcome connect_when_told();
  void reach(Stage stage);
  WorkPtr next_work();
  // Puts it into the stream. The caller has set launching_, and calls end_launch() afterwards.
  void launch(DeviceWork& work);
  void end_launch();
  Outcome put_into_stream(DeviceWork& work);
  void run_watchdog();
  void watch();
  void run_abort();
  bool poll(DeviceWork& work);
  void finish(DeviceWork& work);
  bool succeed(DeviceWork& work);
  void expire();
  void fail_named(const DeviceWork* work, Failure failure);
  bool device_is_through(const std::deque<WorkPtr>& works) const;
  void settle();
  void poll_running();
  void end_thread(std::thread& thread, bool ended);

  const std::shared_ptr<const NcclLibrary> library_;
  const NcclEngineOptions options_;
  Communicator communicator_;
  EventPool events_;
  std::mutex order_mutex_;         // No event is reused while a stream is being ordered behind it.
  cuda::Stream stream_ = nullptr;  // Written by ddp-nccl before it is prepared.
  void* scratch_ = nullptr;        // One element for barriers.

  mutable std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  std::condition_variable watch_changed_;
  std::deque<WorkPtr> queue_;    // Not begun.
  std::deque<WorkPtr> running_;  // Being put into the stream, or in it.
  Outcome failure_;
  TimePoint failed_at_{};
  std::uint64_t sequence_ = 0;
  Stage stage_ = Stage::kPreparing;
  std::optional<nccl::api::UniqueId> id_;  // From connect().
  bool launching_ = false;  // A thread is putting a running operation into the stream.
  bool closing_ = false;
  bool closed_ = false;  // No thread is left that could act.
  bool stop_watch_ = false;
  bool communication_ended_ = false;
  bool watch_ended_ = false;
  bool abort_done_ = false;
  std::atomic<bool> failed_{false};  // failure_ is set.

  std::thread communication_;
  std::thread watchdog_;
  std::thread abort_;
};

}  // namespace ddp::nccl
