#include "worker/python/native/backend_work.h"

#include <optional>
#include <utility>

#include <c10/util/Exception.h>

#include "worker/python/native/failures.h"
#include "worker/python/native/interpreter.h"

namespace ddp::python {
namespace {

c10::intrusive_ptr<c10::ivalue::Future> future_for(
    const std::vector<std::vector<at::Tensor>>& value) {
  const auto tensors = c10::ListType::create(c10::TensorType::get());
  if (value.size() > 1) {
    return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(tensors));
  }
  return c10::make_intrusive<c10::ivalue::Future>(tensors);
}

std::optional<std::vector<at::Tensor>> recorded(const Operands& operands) {
  return operands.used();
}

}  // namespace

BackendWork::BackendWork(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
                         Operands operands, std::vector<std::vector<at::Tensor>> value)
    : Work(rank, type, title, recorded(operands)),
      sequence_(sequence),
      operands_(std::move(operands)),
      value_(std::move(value)),
      future_(future_for(value_)) {}

void BackendWork::operation_done(std::exception_ptr failure) {
  if (failure) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = failure;
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
  if (!failure) land();
  finish(failure);
  if (failure) {
    future_->setError(failure);
  } else if (value_.size() > 1) {
    future_->markCompleted(c10::IValue(value_));
  } else {
    future_->markCompleted(
        c10::IValue(value_.empty() ? std::vector<at::Tensor>{} : value_.front()));
  }
}

void BackendWork::land() {
  std::call_once(landed_, [this] { operands_.land(); });
}

bool BackendWork::is_done() const {
  for (const WorkPtr& work : works_) {
    if (!work->done()) return false;
  }
  return true;
}

bool BackendWork::isCompleted() { return is_done(); }

bool BackendWork::isSuccess() const { return is_done() && !exception(); }

std::exception_ptr BackendWork::exception() const {
  for (const WorkPtr& work : works_) {
    if (!work->done()) continue;
    try {
      work->wait();
    } catch (const CollectiveError& error) {
      return as_backend_error(error);
    }
  }
  return nullptr;
}

int BackendWork::sourceRank() const { return message_ ? message_->source : -1; }

std::vector<at::Tensor> BackendWork::result() {
  TORCH_CHECK(is_done(), "the operation is not done; call wait() first");
  TORCH_CHECK(value_.size() <= 1, "the operation has a list of lists; use get_future()");
  return value_.empty() ? std::vector<at::Tensor>{} : value_.front();
}

bool BackendWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout && !is_done()) return Work::wait(timeout);
  const WithoutGil without_gil;
  const SignalCheck check;
  try {
    for (const WorkPtr& work : works_) work->wait();
  } catch (const CollectiveError& error) {
    check.rethrow();
    std::rethrow_exception(as_backend_error(error));
  }
  land();
  return true;
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
