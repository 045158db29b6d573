#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/ring_queue.h"
#include "common/base/shared_text.h"
#include "common/base/unique_fd.h"
#include "worker/collectives/collectives.h"
#include "worker/runtime/alarm.h"
#include "worker/runtime/flight_recorder.h"
#include "worker/runtime/meeting.h"
#include "worker/runtime/process_group.h"
#include "worker/runtime/spare_threads.h"
#include "worker/runtime/waiting_time.h"
#include "worker/runtime/work.h"
#include "worker/transport/transport.h"

namespace ddp::runtime {

class MessageWork;
class PostOffice;

// ProcessGroup over any Transport: a queue of operations and a communication thread. A thread that
// waits for an operation runs it itself if the communication thread has not begun. The thread that
// holds executing_ is "the executing thread". The destructor fails operations that are not done,
// here and on the other ranks.
class Group final : public ProcessGroup, public std::enable_shared_from_this<Group> {
 public:
  // meeting: how to find ranks of other nodes; needed for messages and sub-groups that span nodes.
  static std::shared_ptr<Group> make(std::unique_ptr<transport::Transport> transport, Round round,
                                     const ProcessGroupOptions& options, Meeting meeting = {});
  // For make().
  Group(std::unique_ptr<transport::Transport> transport, Round round,
        const ProcessGroupOptions& options, Meeting meeting);
  // Joins the group's threads.
  ~Group() override;

  // Sets which algorithms to use. The same on all ranks; no operation may be outstanding.
  void choose(const collectives::Choice& choice);
  // Calls body, whose operations get no sequence numbers and no entries in the flight recorder. On
  // all ranks alike, before anything else uses the group.
  void aside(const std::function<void()>& body);
  int nodes() const { return transport_->topology().nodes(); }
  // What allocate() takes memory from; null if no other rank of the group is on this rank's node.
  std::shared_ptr<transport::Arena> shared_arena() const {
    return transport_->topology().local_size() > 1 ? transport_->arena() : nullptr;
  }

  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  Round round() const override { return round_; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;

  WorkPtr all_reduce(Buffer in_out, ReduceOp op, OpOptions options) override;
  WorkPtr all_reduce_coalesced(std::span<const Buffer> in_out, ReduceOp op,
                               OpOptions options) override;
  WorkPtr broadcast(Buffer in_out, Rank root, OpOptions options) override;
  WorkPtr reduce(Buffer in_out, Rank root, ReduceOp op, OpOptions options) override;
  WorkPtr all_gather(Buffer in, Buffer out, OpOptions options) override;
  WorkPtr all_gatherv(Buffer in, Buffer out, std::span<const std::size_t> counts,
                      OpOptions options) override;
  WorkPtr reduce_scatter(Buffer in, Buffer out, ReduceOp op, OpOptions options) override;
  WorkPtr gather(Buffer in, Buffer out, Rank root, OpOptions options) override;
  WorkPtr scatter(Buffer in, Buffer out, Rank root, OpOptions options) override;
  WorkPtr all_to_all(Buffer in, Buffer out, OpOptions options) override;
  WorkPtr all_to_allv(Buffer in, std::span<const std::size_t> send_counts, Buffer out,
                      std::span<const std::size_t> receive_counts, OpOptions options) override;
  WorkPtr barrier(OpOptions options) override;
  WorkPtr send(Buffer buffer, Rank to, std::uint32_t tag, OpOptions options) override;
  WorkPtr recv(Buffer buffer, Rank from, std::uint32_t tag, OpOptions options) override;
  // From whichever rank sends a message with the tag first: MessageWork::source, once it is done.
  std::shared_ptr<MessageWork> recv_any(Buffer buffer, std::uint32_t tag, OpOptions options);
  void monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks) override;
  std::shared_ptr<ProcessGroup> new_group(std::span<const Rank> ranks) override;
  std::shared_ptr<ProcessGroup> split(int color, int key) override;
  void abort(const std::string& reason) override;
  void abort_with(const Failure& cause) override;
  Outcome failure() const override { return transport_->check(); }

  // For CollectiveWork::wait(). Runs queued operations up to `work` on this thread, as long as none
  // has a later deadline, unless another thread is doing so.
  void help(const CollectiveWork& work);
  // The work's deadline has passed: aborts the group if the work has not begun.
  void expire(const CollectiveWork& work);
  // This rank gives up a wait (WaitInterrupt): aborts the group.
  void interrupt();
  // Lets the group's thread look at once what there is to do.
  void wake();

 private:
  // Any thread, also one of the group's own: a listener may have held the last reference.
  static void destroy(Group* group);
  WorkPtr issue(collectives::Operation operation, OpOptions options);
  void require_room_for_messages(const collectives::Operation& operation) const;
  // Runs the operation here and now. Returns false if another thread is running operations.
  bool run_now(collectives::Operation& operation, const SharedText& tag, Waiting& waiting);
  std::shared_ptr<CollectiveWork> enqueue(collectives::Operation operation, OpOptions options);
  struct Proposal;
  std::shared_ptr<Group> make_sub_group(Proposal proposal, const char* name);
  // heads: by rank of this group. own: this rank's head.
  std::shared_ptr<Group> connect_sub_group(const std::vector<Rank>& members,
                                           const std::vector<std::uint64_t>& heads,
                                           transport::SubGroupHead own, const std::string& name);
  Rank rank_in_world(Rank rank) const {
    return meeting_.world_ranks.empty() ? rank
                                        : meeting_.world_ranks[static_cast<std::size_t>(rank)];
  }
  PostOffice& messages();
  void run_thread();
  // Runs the next operation. False if there is none, or none with such a deadline.
  bool run_next(std::unique_lock<std::mutex>& executing, TimePoint latest_deadline);
  // Releases the lock and tells the listeners of the works that were done under it.
  void release(std::unique_lock<std::mutex>& executing);
  // Runs all that is queued. By the group's threads.
  void drain_queue();
  std::uint64_t record_issue(const collectives::Operation& operation, const SharedText& tag,
                             bool started);
  std::shared_ptr<CollectiveWork> next_work(TimePoint latest_deadline = TimePoint::max());
  // The following need executing_.
  void finish(const std::shared_ptr<CollectiveWork>& work, const Outcome& failure);
  void execute(const std::shared_ptr<CollectiveWork>& work);
  Outcome perform(const collectives::Operation& operation);
  Outcome exchange_messages(const collectives::Operation& operation);
  // Names the operation and ends the group; returns the first cause.
  Failure fail_operation(Failure failure, const std::string& name);
  Failure settle(Failure failure);
  void fail_queue(const Failure& cause);

  const Rank rank_;
  const int size_;
  const Round round_;
  const ProcessGroupOptions options_;
  const Meeting meeting_;
  const int largest_node_;  // Its number of ranks.
  UniqueFd wake_fd_;

  std::mutex executing_;  // Taken before mutex_ where both are needed.
  std::unique_ptr<transport::Transport>
      transport_;  // Used under executing_, except for what any thread may call.
  collectives::Collectives collectives_;  // Under executing_.
  TimePoint ended_;                       // When the newest operation ended. Under executing_.
  // Done; their listeners have not been told. Under executing_.
  std::vector<std::shared_ptr<CollectiveWork>> untold_;
  FlightRecorder flight_;

  std::mutex mutex_;  // Guards what follows.
  RingQueue<std::shared_ptr<CollectiveWork>> queue_;
  Alarm overdue_;           // Wakes the group's thread. Set while something is queued.
  int run_by_callers_ = 0;  // Operations in a row that wait() has run before overdue_ rang.
  Outcome failure_;         // The first cause; the group is unusable from then on.
  std::uint64_t sequence_ = 0;
  std::atomic<bool> recording_{true};
  std::atomic<std::uint64_t> messages_issued_{0};
  std::size_t unfinished_ = 0;  // Issued operations that have no result yet.
  bool stopping_ = false;
  SpareThreads spares_{mutex_, [this] { drain_queue(); }};
  std::shared_ptr<PostOffice> messages_;

  int sub_groups_made_ = 0;  // Used by callers of new_group() and split(), one at a time.

  std::thread thread_;  // Last: it uses everything above.
};

}  // namespace ddp::runtime
