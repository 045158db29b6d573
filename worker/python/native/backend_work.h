#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "worker/python/native/operands.h"
#include "worker/runtime/message.h"
#include "worker/runtime/process_group.h"

namespace ddp::python {

// PyTorch's Work for one call, which may have issued several operations. It keeps the tensors of
// the call alive until all of them are done, also if Python has dropped it by then.
//
// wait() runs the operation on the calling thread if no other thread has begun it. Any thread.
class BackendWork final : public c10d::Work {
 public:
  // value: what the future gives: [[tensor, ...], ...], or fewer levels as PyTorch's backends do.
  BackendWork(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
              Operands operands, std::vector<std::vector<at::Tensor>> value);

  // For OpOptions::on_done of each operation, `operations` of them.
  void expect(int operations) { expected_.store(operations); }
  void operation_done(std::exception_ptr failure);
  // What the calls have returned. Call it before the Work is given to anybody.
  void issued(std::vector<WorkPtr> works) { works_ = std::move(works); }
  void issued_from_any(std::shared_ptr<runtime::MessageWork> message) {
    message_ = message;
    works_ = {std::move(message)};
  }
  // Marks a Work that has no operation as done.
  void finish_now();

  const Operands& operands() const { return operands_; }

  // Whether the results are in the tensors, or the call has failed.
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(kNoTimeout); }
  // timeout: how long to wait; kNoTimeout: until the operation's own deadline. A wait that times
  // out, or that a signal ends, throws and leaves the operation running.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }

 private:
  void wait_within(std::chrono::milliseconds timeout);
  void complete();
  // Puts the results into the tensors, once; call it when all operations have succeeded. Returns
  // why that has failed: a tensor may have been changed since the call.
  std::exception_ptr land();
  bool landed() const { return landed_.load(std::memory_order_acquire); }

  const std::uint64_t sequence_;
  const Operands operands_;
  const std::vector<std::vector<at::Tensor>> value_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::vector<WorkPtr> works_;
  std::shared_ptr<runtime::MessageWork> message_;  // Of a receive from any rank.
  std::atomic<int> expected_{1};
  std::once_flag landing_;
  std::exception_ptr landing_failure_;  // Written before landed_ becomes true.
  std::atomic<bool> landed_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;  // The first one.
};

// Several calls as one. getFuture() is done when all of theirs are, with the first one's failure.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace ddp::python
