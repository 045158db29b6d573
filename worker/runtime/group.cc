#include "worker/runtime/group.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "common/base/check.h"
#include "common/base/errc.h"
#include "common/base/recycled.h"
#include "worker/runtime/helper_threads.h"
#include "worker/runtime/operations.h"
#include "worker/runtime/post_office.h"

namespace ddp::runtime {
namespace {

constexpr std::chrono::hours kLongestTimeout{24 * 365};
// Most callers wait for what they have issued at once, and then run it themselves. To wake the
// group's thread for nothing would cost more than a small operation takes, and a CPU that other
// ranks compute on. So the thread is left asleep for a while: briefly at first, and longer once
// kTrusted operations in a row have been run by their callers. The longer time is beyond the next
// tick of the kernel's clock. To set a timer that is due earlier can take 40 us in a virtual
// machine.
constexpr std::chrono::microseconds kPatience{100};
constexpr std::chrono::milliseconds kLongPatience{5};
constexpr int kTrusted = 8;
thread_local const Group* own_thread_of = nullptr;

}  // namespace

std::shared_ptr<Group> Group::make(std::unique_ptr<transport::Transport> transport, Round round,
                                   const ProcessGroupOptions& options, Meeting meeting) {
  if (transport->topology().world_size() > 1 && !transport->watch()) {
    transport->start_watch({transport::stall_timeout_from_environment(options.stall_timeout)});
  }
  std::shared_ptr<Group> group(new Group(std::move(transport), round, options, std::move(meeting)),
                               &Group::destroy);
  group->thread_ = std::thread([raw = group.get()] { raw->run_thread(); });
  return group;
}

Group::Group(std::unique_ptr<transport::Transport> transport, Round round,
             const ProcessGroupOptions& options, Meeting meeting)
    : rank_(transport->topology().rank()),
      size_(transport->topology().world_size()),
      round_(round),
      options_(options),
      meeting_(std::move(meeting)),
      largest_node_(std::ranges::max(transport->topology().node_sizes())),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      transport_(std::move(transport)),
      collectives_(*transport_),
      flight_(transport_->segment().flight(transport_->topology().local_rank()), rank_,
              meeting_.group, &transport_->segment().trace(transport_->topology().local_rank())) {
  DDP_CHECK(static_cast<bool>(wake_fd_), "eventfd: errno {}", errno);
  PostOfficeOptions messages;
  messages.timeout = options_.timeout;
  messages.on_failure = [this](const Failure& cause) { abort_with(cause); };
  messages.recorder = flight_;
  messages.world_ranks = meeting_.world_ranks;
  messages_ = std::make_shared<PostOffice>(*transport_, meeting_, round_, std::move(messages));
}

void Group::destroy(Group* group) {
  if (own_thread_of == group || group->messages_->is_own_thread()) {
    run_on_helper_thread([group] { delete group; });
  } else {
    delete group;
  }
}

Group::~Group() {
  std::size_t outstanding = 0;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    spares_.stop();
    outstanding = unfinished_;
  }
  if (outstanding > 0) {
    abort_with({Errc::kAborted, rank_,
                fmt::format("rank {} destroyed the group before its operations were done", rank_)});
  }
  wake();
  if (thread_.joinable()) thread_.join();
  spares_.join();
  if (messages_) messages_->close();
  transport_->segment().leave(transport_->topology().local_rank());
}

void Group::choose(const collectives::Choice& choice) {
  const std::lock_guard executing(executing_);
  collectives_.choose(choice);
}

void Group::aside(const std::function<void()>& body) {
  const auto set_sequence = [&](std::uint64_t sequence) {
    const std::lock_guard lock(mutex_);
    return std::exchange(sequence_, sequence);
  };
  const std::uint64_t before = set_sequence(0);
  recording_ = false;
  body();
  recording_ = true;
  set_sequence(before);
}

std::shared_ptr<std::byte> Group::allocate(std::size_t bytes) {
  return transport_->arena()->allocate(bytes);
}

WorkPtr Group::all_reduce(Buffer in_out, ReduceOp op, OpOptions options) {
  return issue(operations::all_reduce(in_out, op), std::move(options));
}

WorkPtr Group::all_reduce_coalesced(std::span<const Buffer> in_out, ReduceOp op,
                                    OpOptions options) {
  Buffer whole = operations::whole_of(in_out);
  auto packed = allocate(whole.bytes());
  if (!packed)
    packed = std::shared_ptr<std::byte>(new std::byte[whole.bytes() + 1],
                                        [](std::byte* memory) { delete[] memory; });
  whole.data = packed.get();
  collectives::Operation operation = operations::all_reduce(whole, op);
  operation.parts.assign(in_out.begin(), in_out.end());
  operation.packed = std::move(packed);
  return issue(std::move(operation), std::move(options));
}

WorkPtr Group::broadcast(Buffer in_out, Rank root, OpOptions options) {
  return issue(operations::broadcast(in_out, root, size_), std::move(options));
}

WorkPtr Group::reduce(Buffer in_out, Rank root, ReduceOp op, OpOptions options) {
  return issue(operations::reduce(in_out, root, op, size_), std::move(options));
}

WorkPtr Group::all_gather(Buffer in, Buffer out, OpOptions options) {
  return issue(operations::all_gather(in, out, size_), std::move(options));
}

WorkPtr Group::all_gatherv(Buffer in, Buffer out, std::span<const std::size_t> counts,
                           OpOptions options) {
  return issue(operations::all_gatherv(in, out, counts, rank_, size_), std::move(options));
}

WorkPtr Group::reduce_scatter(Buffer in, Buffer out, ReduceOp op, OpOptions options) {
  return issue(operations::reduce_scatter(in, out, op, size_), std::move(options));
}

WorkPtr Group::gather(Buffer in, Buffer out, Rank root, OpOptions options) {
  return issue(operations::gather(in, out, root, rank_, size_), std::move(options));
}

WorkPtr Group::scatter(Buffer in, Buffer out, Rank root, OpOptions options) {
  return issue(operations::scatter(in, out, root, rank_, size_), std::move(options));
}

WorkPtr Group::all_to_all(Buffer in, Buffer out, OpOptions options) {
  return issue(operations::all_to_all(in, out, size_), std::move(options));
}

WorkPtr Group::all_to_allv(Buffer in, std::span<const std::size_t> send_counts, Buffer out,
                           std::span<const std::size_t> receive_counts, OpOptions options) {
  return issue(operations::all_to_allv(in, send_counts, out, receive_counts, size_),
               std::move(options));
}

WorkPtr Group::barrier(OpOptions options) {
  return issue(operations::barrier(), std::move(options));
}

WorkPtr Group::issue(collectives::Operation operation, OpOptions options) {
  if (options.timeout.count() < 0) {
    throw std::invalid_argument(fmt::format("{}: the timeout is {} ms, but must not be negative",
                                            name_of(operation.record.kind),
                                            options.timeout.count()));
  }
  if (largest_node_ > static_cast<int>(transport::kPairRanks)) require_room_for_messages(operation);
  operation.timeout = std::min<Duration>(
      options.timeout.count() > 0 ? options.timeout : options_.timeout, kLongestTimeout);
  operation.deadline = Clock::now() + operation.timeout;
  if (!options.synchronous) {
    if (options.on_done) future_issued(operation.issued());
    return enqueue(std::move(operation), std::move(options));
  }
  Waiting waiting(operation.issued());
  if (run_now(operation, options.tag, waiting)) {
    if (options.on_done) options.on_done(nullptr);
    return done_work();
  }
  const auto work = enqueue(std::move(operation), std::move(options));
  work->wait();
  return work;
}

// All ranks find the same, whatever the size of their own node.
void Group::require_room_for_messages(const collectives::Operation& operation) const {
  if (!collectives_.needs_messages(operation)) return;
  throw std::invalid_argument(fmt::format(
      "{}: between nodes it needs messages, which at most {} ranks of a node can exchange, but a "
      "node has {}: start fewer workers on each node, or set DDP_VIRTUAL_NODE differently on some",
      name_of(operation.record.kind), transport::kPairRanks, largest_node_));
}

bool Group::run_now(collectives::Operation& operation, const SharedText& tag, Waiting& waiting) {
  const std::unique_lock executing(executing_, std::try_to_lock);
  if (!executing) return false;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw CollectiveError(*failure_);
    if (!queue_.empty()) return false;
    operation.record.sequence = sequence_++;
  }
  operation.flight = record_issue(operation, tag, true);
  auto failure = perform(operation);
  waiting.end(ended_);
  if (failure) {
    throw CollectiveError(
        fail_operation(std::move(*failure), name_operation(operation.record, tag)));
  }
  return true;
}

std::shared_ptr<CollectiveWork> Group::enqueue(collectives::Operation operation,
                                               OpOptions options) {
  std::shared_ptr<CollectiveWork> work;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw CollectiveError(*failure_);
    operation.record.sequence = sequence_++;
    operation.flight = record_issue(operation, options.tag, false);
    work =
        std::allocate_shared<CollectiveWork>(RecyclingAllocator<CollectiveWork>(), weak_from_this(),
                                             std::move(operation), std::move(options));
    queue_.push_back(work);
    overdue_.set(run_by_callers_ < kTrusted ? kPatience : kLongPatience);
    ++unfinished_;
    spares_.queued();
  }
  return work;
}

std::uint64_t Group::record_issue(const collectives::Operation& operation, const SharedText& tag,
                                  bool started) {
  if (!recording_) return 0;
  const collectives::OpRecord& record = operation.record;
  return flight_.issued({record.sequence, record.count, record.root, name_of(operation.type()),
                         name_of(record.kind), tag.str(), dtype_bytes(operation.type())},
                        operation.issued(), started);
}

void Group::abort(const std::string& reason) {
  abort_with({Errc::kAborted, rank_, fmt::format("rank {} aborted the group: {}", rank_, reason)});
}

void Group::expire(const CollectiveWork& work) {
  {
    const std::lock_guard lock(mutex_);
    std::size_t place = 0;
    while (place < queue_.size() && queue_[place].get() != &work) ++place;
    if (place == queue_.size()) return;
  }
  abort_with(
      {Errc::kTimeout, -1,
       fmt::format("{}: timed out after {} ms on rank {}, behind an operation that is not done",
                   work.name(), work.operation().timeout.count(), rank_)});
}

void Group::interrupt() {
  abort_with(
      {Errc::kAborted, rank_, fmt::format("rank {} was interrupted while it waited", rank_)});
}

void Group::abort_with(const Failure& cause) {
  transport_->raise_abort(cause);
  wake();
}

void Group::wake() {
  const std::uint64_t one = 1;
  // Fails only if the counter is full; then the thread is awake anyway.
  (void)!::write(wake_fd_.get(), &one, sizeof(one));
}

std::shared_ptr<CollectiveWork> Group::next_work(TimePoint latest_deadline) {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || queue_.front()->operation().deadline > latest_deadline) return nullptr;
  auto work = queue_.pop_front();
  if (queue_.empty()) {
    overdue_.clear();
    spares_.emptied();
  }
  return work;
}

void Group::help(const CollectiveWork& work) {
  while (!work.done()) {
    std::unique_lock executing(executing_, std::try_to_lock);
    // An operation with a later deadline could hold this thread beyond its own deadline.
    if (!executing || !run_next(executing, work.operation().deadline)) return;
    const std::lock_guard lock(mutex_);
    if (run_by_callers_ < kTrusted) ++run_by_callers_;
  }
}

bool Group::run_next(std::unique_lock<std::mutex>& executing, TimePoint latest_deadline) {
  const auto work = next_work(latest_deadline);
  if (work) execute(work);
  release(executing);
  return work != nullptr;
}

void Group::release(std::unique_lock<std::mutex>& executing) {
  const auto untold = std::exchange(untold_, {});
  executing.unlock();
  if (untold.empty()) return;
  // While a caller of wait() tells them, the group's thread can run what is queued.
  const bool holds_up = own_thread_of == this;
  if (holds_up) {
    const std::lock_guard lock(mutex_);
    spares_.begin_telling();
  }
  for (const auto& work : untold) work->tell_listener();
  if (!holds_up) return;
  const std::lock_guard lock(mutex_);
  spares_.end_telling();
}

void Group::drain_queue() {
  own_thread_of = this;
  ignore_waits_of_this_thread();
  for (;;) {
    std::unique_lock executing(executing_);
    if (!run_next(executing, TimePoint::max())) return;
  }
}

void Group::execute(const std::shared_ptr<CollectiveWork>& work) {
  flight_.started(work->operation().flight);
  auto failure = perform(work->operation());
  if (!failure) {
    finish(work, failure);
    return;
  }
  const Failure first = fail_operation(std::move(*failure), work->name());
  finish(work, first);
  fail_queue(first);
}

Outcome Group::perform(const collectives::Operation& operation) {
  auto* packed = static_cast<std::byte*>(operation.in.data);
  for (const Buffer& part : operation.parts) {
    if (part.count > 0) std::memcpy(packed, part.data, part.bytes());
    packed += part.bytes();
  }
  auto failure = collectives_.run(operation);
  if (!failure && collectives_.needs_messages(operation)) failure = exchange_messages(operation);
  ended_ = Clock::now();
  flight_.finished(operation.flight, !failure, ended_);
  if (failure) return failure;
  packed = static_cast<std::byte*>(operation.in.data);
  for (const Buffer& part : operation.parts) {
    if (part.count > 0) std::memcpy(part.data, packed, part.bytes());
    packed += part.bytes();
  }
  return {};
}

Failure Group::fail_operation(Failure failure, const std::string& name) {
  if (!failure.told) failure.text = fmt::format("{}: {}", name, failure.text);
  return settle(std::move(failure));
}

void Group::finish(const std::shared_ptr<CollectiveWork>& work, const Outcome& failure) {
  {
    // Do this first: a waiter that sees the result may destroy the group at once.
    const std::lock_guard lock(mutex_);
    --unfinished_;
  }
  if (work->has_listener()) {
    future_done(work->operation().issued());
    untold_.push_back(work);
  }
  if (failure) {
    work->fail(*failure);
  } else {
    work->succeed();
  }
}

// From here on every call on this group fails with the first cause.
Failure Group::settle(Failure failure) {
  const Failure ended_by = transport_->shut_down(failure);
  Failure first;
  {
    // Before anybody is told: a listener may call the group at once.
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = ended_by;
    first = *failure_;
  }
  const PostOffice::Silence silence(*messages_);
  messages_->fail(first);
  return first;
}

void Group::fail_queue(const Failure& cause) {
  while (const auto work = next_work()) {
    flight_.finished(work->operation().flight, false);
    finish(work, cause);
  }
}

void Group::run_thread() {
  ::pthread_setname_np(::pthread_self(), "ddp-comm");
  for (;;) {
    pollfd entries[4] = {{wake_fd_.get(), POLLIN, 0}, {overdue_.fd(), POLLIN, 0}, {}, {}};
    int count = 2;
    drain_queue();
    bool alive = false;
    {
      const std::lock_guard lock(mutex_);
      alive = !failure_;
      if (stopping_ && queue_.empty()) return;
    }
    if (alive) {
      std::unique_lock executing(executing_);
      if (auto cause = transport_->check()) {
        fail_queue(settle(std::move(*cause)));
        release(executing);
        continue;
      }
      for (const transport::Link* link : {transport_->previous(), transport_->next()}) {
        if (link != nullptr) count += link->idle_poll_entries(entries + count);
      }
    }
    ::poll(entries, static_cast<nfds_t>(count), -1);
    if (entries[1].revents != 0) {
      const std::lock_guard lock(mutex_);
      run_by_callers_ = 0;
    }
    std::uint64_t ignored = 0;
    (void)!::read(wake_fd_.get(), &ignored, sizeof(ignored));
  }
}

}  // namespace ddp::runtime
