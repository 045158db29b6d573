#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "common/base/shared_text.h"
#include "worker/collectives/operation.h"
#include "worker/runtime/process_group.h"
#include "worker/transport/failure.h"

namespace ddp::runtime {

class Group;

// The Work of every operation that is done when its call returns.
const WorkPtr& done_work();
// "all_reduce #17 (bucket 3)"
std::string name_operation(const collectives::OpRecord& record, const SharedText& tag);

// The Work of a Group. Completed once, by the thread that executes the group's operations.
class CollectiveWork final : public Work {
 public:
  CollectiveWork(std::weak_ptr<Group> group, collectives::Operation operation, OpOptions options)
      : group_(std::move(group)),
        operation_(std::move(operation)),
        tag_(std::move(options.tag)),
        on_done_(std::move(options.on_done)),
        has_future_(on_done_ != nullptr) {}

  bool done() const override { return state_.load(std::memory_order_acquire) != kPending; }
  void wait() override;
  void start() override;

  const collectives::Operation& operation() const { return operation_; }
  std::string name() const { return name_operation(operation_.record, tag_); }

  void succeed();
  void fail(Failure failure);
  bool has_listener() const { return on_done_ != nullptr; }
  // Calls OpOptions::on_done. Call it once, after the work has succeeded or failed.
  void tell_listener();

 private:
  enum State : std::uint32_t { kPending, kSucceeded, kFailed };

  void finish(State state);
  bool wait_until(TimePoint limit);
  void wait_for_end();

  std::weak_ptr<Group> group_;
  collectives::Operation operation_;
  SharedText tag_;
  std::function<void(std::exception_ptr)> on_done_;
  const bool has_future_;
  Failure failure_;  // Written before state_ becomes kFailed.
  std::atomic<std::uint32_t> state_{kPending};
  std::atomic<std::uint32_t> waiters_{0};
};

}  // namespace ddp::runtime
