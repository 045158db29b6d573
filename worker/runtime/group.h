#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/unique_fd.h"
#include "worker/collectives/collectives.h"
#include "worker/runtime/process_group.h"
#include "worker/runtime/work.h"
#include "worker/transport/transport.h"

namespace ddp {

// ProcessGroup over any Transport: a queue of operations and a communication thread. A thread that
// waits for an operation runs it itself if the communication thread has not begun; whoever holds
// executing_ is "the executing thread".
//
// Destruction fails what is not done, here and on the other ranks.
class Group final : public ProcessGroup, public std::enable_shared_from_this<Group> {
 public:
  static std::shared_ptr<Group> make(std::unique_ptr<Transport> transport, Round round,
                                     const ProcessGroupOptions& options);
  // For make().
  Group(std::unique_ptr<Transport> transport, Round round, const ProcessGroupOptions& options);
  ~Group() override;

  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  Round round() const override { return round_; }

  WorkPtr all_reduce(Buffer in_out, ReduceOp op, OpOptions options) override;
  WorkPtr broadcast(Buffer in_out, Rank root, OpOptions options) override;
  WorkPtr all_gather(Buffer in, Buffer out, OpOptions options) override;
  WorkPtr barrier(OpOptions options) override;
  void abort(const std::string& reason) override;

  // For CollectiveWork::wait(). Runs queued operations up to `work` on this thread, while none has
  // a later deadline, unless another one is at it.
  void help(const CollectiveWork& work);
  // The work's deadline has passed: aborts if its turn has not come.
  void expire(const CollectiveWork& work);

 private:
  WorkPtr issue(OpRecord record, Buffer in, Buffer out, OpOptions options);
  void abort_with(const Failure& cause);
  void run_thread();
  void wake();
  std::shared_ptr<CollectiveWork> next_work(TimePoint latest_deadline = TimePoint::max());
  void finish(CollectiveWork& work, const Outcome& failure);
  // The following need executing_.
  void execute(CollectiveWork& work);
  Failure settle(Failure failure);
  void fail_queue(const Failure& cause);

  const Rank rank_;
  const int size_;
  const Round round_;
  const ProcessGroupOptions options_;
  UniqueFd wake_fd_;

  std::mutex executing_;  // Taken before mutex_ where both are needed.
  std::unique_ptr<Transport>
      transport_;            // Used under executing_, except for what any thread may call.
  Collectives collectives_;  // Under executing_.

  std::mutex mutex_;  // Guards what follows.
  std::deque<std::shared_ptr<CollectiveWork>> queue_;
  Outcome failure_;  // The first cause; the group is then of no further use.
  std::uint64_t sequence_ = 0;
  std::size_t unfinished_ = 0;  // Issued operations that have no result yet.
  bool stopping_ = false;

  std::thread thread_;  // Last: it uses everything above.
};

}  // namespace ddp
