#include "worker/runtime/group.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "common/base/check.h"
#include "common/base/errc.h"

namespace ddp {
namespace {

// How late an idle rank with links may see that the agent raised the abort word, to pass it on to
// other nodes.
constexpr int kIdlePollMs = 50;
constexpr std::chrono::hours kLongestTimeout{24 * 365};

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

void require_data(const char* operation, const Buffer& buffer) {
  require(buffer.data != nullptr || buffer.count == 0,
          fmt::format("{}: the buffer of {} elements has no address", operation, buffer.count));
}

OpRecord record_of(OpKind kind, const Buffer& buffer) {
  OpRecord record;
  record.kind = kind;
  record.type = static_cast<std::uint32_t>(buffer.type);
  record.count = buffer.count;
  return record;
}

[[noreturn]] void throw_failure(const Failure& failure) {
  throw CollectiveError(failure.text, failure.code, failure.suspect);
}

}  // namespace

std::shared_ptr<Group> Group::make(std::unique_ptr<Transport> transport, Round round,
                                   const ProcessGroupOptions& options) {
  auto group = std::make_shared<Group>(std::move(transport), round, options);
  group->thread_ = std::thread([raw = group.get()] { raw->run_thread(); });
  return group;
}

Group::Group(std::unique_ptr<Transport> transport, Round round, const ProcessGroupOptions& options)
    : rank_(transport->topology().rank()),
      size_(transport->topology().world_size()),
      round_(round),
      options_(options),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      transport_(std::move(transport)),
      collectives_(*transport_) {
  DDP_CHECK(static_cast<bool>(wake_fd_), "eventfd: errno {}", errno);
}

Group::~Group() {
  std::size_t outstanding = 0;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    outstanding = unfinished_;
  }
  if (outstanding > 0) {
    abort_with({Errc::kAborted, rank_,
                fmt::format("rank {} gave up the group before its operations were done", rank_)});
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

WorkPtr Group::all_reduce(Buffer in_out, ReduceOp op, OpOptions options) {
  require_data("all_reduce", in_out);
  require(op != ReduceOp::kAvg || is_floating(in_out.type),
          fmt::format("all_reduce: an average of {} has no exact value; use a sum",
                      name_of(in_out.type)));
  require(valid(in_out.type, op.kind()) && op.kind() != ReduceOp::kPremulSum,
          fmt::format("all_reduce: {} of {} is not defined", name_of(op), name_of(in_out.type)));
  OpRecord record = record_of(OpKind::kAllReduce, in_out);
  record.op = op.kind();
  return issue(record, in_out, in_out, std::move(options));
}

WorkPtr Group::broadcast(Buffer in_out, Rank root, OpOptions options) {
  require_data("broadcast", in_out);
  require(root >= 0 && root < size_,
          fmt::format("broadcast: root {} is not in 0..{}", root, size_ - 1));
  OpRecord record = record_of(OpKind::kBroadcast, in_out);
  record.root = root;
  return issue(record, in_out, in_out, std::move(options));
}

WorkPtr Group::all_gather(Buffer in, Buffer out, OpOptions options) {
  require_data("all_gather", in);
  require_data("all_gather", out);
  require(in.type == out.type, fmt::format("all_gather: input of {} and output of {}",
                                           name_of(in.type), name_of(out.type)));
  require(out.count == in.count * static_cast<std::size_t>(size_),
          fmt::format("all_gather: {} elements of {} ranks need an output of {}, not {}", in.count,
                      size_, in.count * static_cast<std::size_t>(size_), out.count));
  return issue(record_of(OpKind::kAllGather, in), in, out, std::move(options));
}

WorkPtr Group::barrier(OpOptions options) {
  return issue(record_of(OpKind::kBarrier, Buffer{nullptr, 0, DType::kU8}), {}, {},
               std::move(options));
}

WorkPtr Group::issue(OpRecord record, Buffer in, Buffer out, OpOptions options) {
  require(options.timeout.count() >= 0,
          fmt::format("{}: a timeout of {} ms", name_of(record.kind), options.timeout.count()));
  Operation operation;
  operation.in = in;
  operation.out = out;
  operation.timeout = std::min<Duration>(
      options.timeout.count() > 0 ? options.timeout : options_.timeout, kLongestTimeout);
  operation.deadline = Clock::now() + operation.timeout;
  std::shared_ptr<CollectiveWork> work;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw_failure(*failure_);
    record.sequence = sequence_++;
    operation.record = record;
    work = std::make_shared<CollectiveWork>(weak_from_this(), operation, std::move(options.tag));
    queue_.push_back(work);
    ++unfinished_;
  }
  wake();
  return work;
}

void Group::abort(const std::string& reason) {
  abort_with({Errc::kAborted, rank_, fmt::format("rank {} aborted the group: {}", rank_, reason)});
}

void Group::expire(const CollectiveWork& work) {
  {
    const std::lock_guard lock(mutex_);
    const auto same = [&](const auto& queued) { return queued.get() == &work; };
    if (std::none_of(queue_.begin(), queue_.end(), same)) return;
  }
  abort_with(
      {Errc::kTimeout, -1,
       fmt::format("{}: timed out after {} ms on rank {}, behind an operation that is not done",
                   work.name(), work.operation().timeout.count(), rank_)});
}

void Group::abort_with(const Failure& cause) {
  transport_->raise_abort(cause);
  wake();
}

void Group::wake() {
  const std::uint64_t one = 1;
  // It fails only when the counter is full, and then the thread is awake.
  (void)!::write(wake_fd_.get(), &one, sizeof(one));
}

std::shared_ptr<CollectiveWork> Group::next_work(TimePoint latest_deadline) {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || queue_.front()->operation().deadline > latest_deadline) return nullptr;
  auto work = std::move(queue_.front());
  queue_.pop_front();
  return work;
}

void Group::help(const CollectiveWork& work) {
  const std::unique_lock executing(executing_, std::try_to_lock);
  if (!executing) return;
  while (!work.done()) {
    // An operation with a later deadline could hold this thread beyond its own.
    const auto next = next_work(work.operation().deadline);
    if (!next) return;
    execute(*next);
  }
}

void Group::execute(CollectiveWork& work) {
  auto failure = collectives_.run(work.operation());
  if (!failure) {
    finish(work, failure);
    return;
  }
  if (!failure->told) failure->text = fmt::format("{}: {}", work.name(), failure->text);
  const Failure first = settle(std::move(*failure));
  finish(work, first);
  fail_queue(first);
}

void Group::finish(CollectiveWork& work, const Outcome& failure) {
  {
    // First, for a waiter that learns the result may destroy the group at once.
    const std::lock_guard lock(mutex_);
    --unfinished_;
  }
  if (failure) {
    work.fail(*failure);
  } else {
    work.succeed();
  }
}

// From here on the first cause is what every call on this group gets.
Failure Group::settle(Failure failure) {
  const Failure first = transport_->shut_down(failure);
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = first;
  return *failure_;
}

void Group::fail_queue(const Failure& cause) {
  while (const auto work = next_work()) finish(*work, cause);
}

void Group::run_thread() {
  ::pthread_setname_np(::pthread_self(), "ddp-comm");
  for (;;) {
    pollfd entries[3] = {{wake_fd_.get(), POLLIN, 0}, {}, {}};
    int count = 1;
    bool alive = false;
    {
      const std::lock_guard executing(executing_);
      while (const auto work = next_work()) execute(*work);
      const std::lock_guard lock(mutex_);
      alive = !failure_;
      if (stopping_) return;
    }
    if (alive) {
      const std::lock_guard executing(executing_);
      if (auto cause = transport_->check()) {
        fail_queue(settle(std::move(*cause)));
        continue;
      }
      for (const Link* link : {transport_->previous(), transport_->next()}) {
        if (link != nullptr) count += link->idle_poll_entries(entries + count);
      }
    }
    const bool has_links = transport_->previous() != nullptr || transport_->next() != nullptr;
    ::poll(entries, static_cast<nfds_t>(count), alive && has_links ? kIdlePollMs : -1);
    std::uint64_t ignored = 0;
    (void)!::read(wake_fd_.get(), &ignored, sizeof(ignored));
  }
}

}  // namespace ddp
