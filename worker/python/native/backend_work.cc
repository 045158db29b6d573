#include "worker/python/native/backend_work.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "common/base/clock.h"
#include "common/wait/wait_interrupt.h"
#include "worker/python/native/failures.h"
#include "worker/python/native/interpreter.h"
#include "worker/python/native/interruptible.h"
#include "worker/python/native/work_value.h"

namespace ddp::python {
namespace {

constexpr std::chrono::hours kLongestWait{24 * 365};

}  // namespace

BackendWork::BackendWork(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
                         Operands operands, std::vector<std::vector<at::Tensor>> value)
    : Work(rank, type, title, operands.used()),
      sequence_(sequence),
      operands_(std::move(operands)),
      value_(std::move(value)),
      future_(c10::make_intrusive<c10::ivalue::Future>(type_of_value(value_))) {}

void BackendWork::operation_done(std::exception_ptr failure) {
  if (failure) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = as_backend_error(failure);
  }
  if (expected_.fetch_sub(1) == 1) complete();
}

void BackendWork::finish_now() { complete(); }

void BackendWork::complete() {
  std::exception_ptr failure;
  {
    const std::lock_guard lock(failure_mutex_);
    failure = failure_;
  }
  if (!failure) failure = land();
  finish(failure);
  if (failure) {
    future_->setError(failure);
  } else {
    future_->markCompleted(as_value(value_));
  }
}

// No exception may leave the group's own thread, which may be the one that lands.
std::exception_ptr BackendWork::land() {
  std::call_once(landing_, [this] {
    try {
      operands_.land();
    } catch (...) {
      landing_failure_ = std::current_exception();
    }
    landed_.store(true, std::memory_order_release);
  });
  return landing_failure_;
}

bool BackendWork::isCompleted() { return landed() || exception(); }

bool BackendWork::isSuccess() const { return landed() && !landing_failure_; }

std::exception_ptr BackendWork::exception() const {
  return landed() ? landing_failure_ : first_failure(works_);
}

int BackendWork::sourceRank() const { return message_ ? message_->source : -1; }

std::vector<at::Tensor> BackendWork::result() {
  TORCH_CHECK(landed(), "the operation is not done; call wait() first");
  return as_result(value_);
}

bool BackendWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout && !all_done(works_)) {
    wait_within(timeout);
    return true;
  }
  const WithoutGil without_gil;
  interruptible([&] {
    for (const WorkPtr& work : works_) work->wait();
  });
  if (const auto failure = land()) std::rethrow_exception(failure);
  return true;
}

// As Work::wait(), which sees no signals.
void BackendWork::wait_within(std::chrono::milliseconds timeout) {
  const WithoutGil without_gil;
  const TimePoint limit = Clock::now() + std::min<std::chrono::milliseconds>(timeout, kLongestWait);
  std::unique_lock lock(mutex_);
  while (!completed_) {
    const auto left = limit - Clock::now();
    TORCH_CHECK(left.count() > 0, "Operation timed out!");
    cv_.wait_for(lock, std::min<std::chrono::nanoseconds>(left, WaitInterrupt::kLook));
    if (completed_) break;
    lock.unlock();
    raise_signal();
    lock.lock();
  }
  if (exception_) std::rethrow_exception(exception_);
}

c10::intrusive_ptr<c10::ivalue::Future> BackendWork::getFuture() {
  // Who waits for a future cannot run the operation meanwhile.
  for (const WorkPtr& work : works_) work->start();
  return future_;
}

bool CoalescedWork::isCompleted() {
  for (const auto& work : works_) {
    if (!work->isCompleted()) return false;
  }
  return true;
}

bool CoalescedWork::isSuccess() const {
  for (const auto& work : works_) {
    if (!work->isSuccess()) return false;
  }
  return true;
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (const auto failure = work->exception()) return failure;
  }
  return nullptr;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  const auto type = c10::ListType::create(c10::TensorType::get());
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(type));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures);
}

}  // namespace ddp::python
