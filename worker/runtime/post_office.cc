#include "worker/runtime/post_office.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/errc.h"
#include "worker/collectives/operation.h"
#include "worker/runtime/work.h"

namespace ddp::runtime {
namespace {

constexpr std::chrono::hours kLongestTimeout{24 * 365};
constexpr std::chrono::seconds kDeliveryTime{
    5};  // To deliver buffered messages when the group ends.

thread_local const PostOffice* silent_at = nullptr;

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

wire::FlightState state_of(const MessageWork& work) {
  if (!work.done()) return work.begun ? wire::FlightState::kStarted : wire::FlightState::kIssued;
  return work.failed() ? wire::FlightState::kFailed : wire::FlightState::kDone;
}

}  // namespace

PostOffice::PostOffice(transport::Transport& transport, Meeting meeting, Round round,
                       PostOfficeOptions options)
    : topology_(transport.topology()),
      segment_(transport.shared_segment()),
      arena_(transport.arena()),
      spin_(transport.spins()),
      generation_(segment_->pairs(topology_.local_rank())
                      .generation.fetch_add(1, std::memory_order_relaxed)),
      timeout_(options.timeout),
      world_ranks_(std::move(options.world_ranks)),
      limit_bytes_(options.unexpected_limit),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      on_failure_(std::move(options.on_failure)),
      recorder_(std::move(options.recorder)),
      peers_(static_cast<std::size_t>(topology_.world_size())) {
  DDP_CHECK(static_cast<bool>(wake_fd_), "eventfd: errno {}", errno);
  if (topology_.nodes() > 1) links_.emplace(std::move(meeting), round, topology_);
}

PostOffice::~PostOffice() { close(); }

PostOffice::Silence::Silence(const PostOffice& office) { silent_at = &office; }

PostOffice::Silence::~Silence() { silent_at = nullptr; }

bool PostOffice::tells() const { return silent_at != this; }

std::shared_ptr<MessageWork> PostOffice::issue(MessageWork::Kind kind, Buffer buffer, Rank rank,
                                               std::uint64_t tag, OpOptions& options,
                                               std::uint64_t sequence) {
  if (failure_) throw CollectiveError(*failure_);
  auto timeout = options.timeout.count() > 0 ? options.timeout : timeout_;
  options.timeout = std::min<std::chrono::milliseconds>(timeout, kLongestTimeout);
  auto work =
      std::make_shared<MessageWork>(weak_from_this(), kind, buffer, rank, tag, sequence, options);
  work->pending = pending_.insert(pending_.end(), work);
  ++issued_;
  return work;
}

namespace {

void require_valid(const char* operation, const Buffer& buffer, Rank rank,
                   const transport::Topology& topology, const OpOptions& options) {
  const int size = topology.world_size();
  if (rank < 0 || rank >= size) {
    refuse(fmt::format("{}: rank {} is not in 0..{}", operation, rank, size - 1));
  }
  if (buffer.data == nullptr && buffer.count != 0) {
    refuse(fmt::format("{}: the buffer of {} elements has no address", operation, buffer.count));
  }
  if (options.timeout.count() < 0) {
    refuse(fmt::format("{}: the timeout is {} ms, but must not be negative", operation,
                       options.timeout.count()));
  }
  if (topology.local_size() > static_cast<int>(transport::kPairRanks)) {
    refuse(fmt::format("{}: at most {} ranks of a node can exchange messages, not {}", operation,
                       transport::kPairRanks, topology.local_size()));
  }
}

}  // namespace

WorkPtr PostOffice::send(Buffer buffer, Rank to, std::uint64_t tag, OpOptions options,
                         std::uint64_t sequence) {
  require_valid("send", buffer, to, topology_, options);
  Lock lock(mutex_);
  Peer& other = peer(to);
  if (!failure_ && !segment_->aborted() && other.node &&
      other.outbox.send_now(buffer, tag, *other.node)) {
    if (recorder_ && tag < kInternalTags) {
      record(MessageWork::Kind::kSend, buffer, to, tag, sequence, options.tag.str(), Clock::now(),
             wire::FlightState::kDone);
    }
    lock.unlock();
    if (options.on_done) options.on_done(nullptr);
    return done_work();
  }
  auto work = issue(MessageWork::Kind::kSend, buffer, to, tag, options, sequence);
  if (to == topology_.rank()) {
    other.inbox.deliver(*work);
  } else {
    other.outbox.add(*work, other.node ? arena_.get() : nullptr);
    activate(other);
    if (other.stream() != nullptr) other.outbox.push(*other.stream(), other.node.get());
    if (!work->done()) other.outbox.keep_last();
    retire(other);
  }
  return issued(lock, std::move(work), options.synchronous);
}

WorkPtr PostOffice::recv(Buffer buffer, Rank from, std::uint64_t tag, OpOptions options,
                         std::uint64_t sequence) {
  require_valid("recv", buffer, from, topology_, options);
  Lock lock(mutex_);
  auto work = issue(MessageWork::Kind::kRecv, buffer, from, tag, options, sequence);
  Peer& other = peer(from);
  other.inbox.post(*work);
  if (!work->done() && !failure_ && from != topology_.rank()) {
    activate(other);
    if (other.stream() != nullptr) other.inbox.pull(*other.stream(), other.node.get(), false);
    retire(other);
  }
  return issued(lock, std::move(work), options.synchronous);
}

std::shared_ptr<MessageWork> PostOffice::recv_any(Buffer buffer, std::uint64_t tag,
                                                  OpOptions options, std::uint64_t sequence) {
  require_valid("recv", buffer, topology_.rank(), topology_, options);
  Lock lock(mutex_);
  auto work = issue(MessageWork::Kind::kRecv, buffer, kAnyRank, tag, options, sequence);
  bool claimed = false;
  for (Rank rank = 0; rank < topology_.world_size() && !claimed; ++rank) {
    claimed = peers_[static_cast<std::size_t>(rank)] && peer(rank).inbox.claim_any(*work);
  }
  if (!claimed) {
    any_source_.push_back(work.get());
    for (Rank rank = 0; rank < topology_.world_size() && !failure_; ++rank) {
      if (rank == topology_.rank()) continue;
      Peer& other = peer(rank);
      activate(other);
      if (work->done() || other.stream() == nullptr) continue;
      other.inbox.pull(*other.stream(), other.node.get(), false);
    }
  }
  issued(lock, work, options.synchronous);
  return work;
}

MessageWork* PostOffice::take_any(std::uint64_t tag, Rank from) {
  const auto found = std::find_if(any_source_.begin(), any_source_.end(),
                                  [&](const MessageWork* each) { return each->tag == tag; });
  if (found == any_source_.end()) return nullptr;
  MessageWork* const recv = *found;
  any_source_.erase(found);
  recv->source = from;
  return recv;
}

WorkPtr PostOffice::issued(Lock& lock, std::shared_ptr<MessageWork> work, bool synchronous) {
  const bool recorded = recorder_ && work->tag < kInternalTags;
  if (recorded || !work->done()) {
    const TimePoint now = Clock::now();
    if (recorded) {
      work->flight = record(work->kind, work->buffer, work->peer, work->tag, work->sequence,
                            work->text(), now, state_of(*work));
    }
    work->deadline = now + work->timeout;
    if (!work->done()) next_deadline_ = std::min(next_deadline_, work->deadline);
  }
  if (completed_ || !work->done()) wake_sleepers();
  if (!synchronous) want_thread();
  unlock(lock);
  if (synchronous) work->wait();
  return work;
}

std::uint64_t PostOffice::record(MessageWork::Kind kind, const Buffer& buffer, Rank peer,
                                 std::uint64_t tag, std::uint64_t sequence, std::string_view text,
                                 TimePoint at, wire::FlightState state) {
  FlightRecorder::Issue issue;
  issue.sequence = sequence;
  issue.count = buffer.count;
  const bool translates = !world_ranks_.empty() && peer != kAnyRank;
  issue.root = translates ? world_ranks_[static_cast<std::size_t>(peer)] : peer;
  issue.type = name_of(buffer.type);
  issue.operation = kind == MessageWork::Kind::kSend ? "send" : "recv";
  issue.tag = text;
  issue.element_bytes = dtype_bytes(buffer.type);
  issue.message_tag = static_cast<std::uint32_t>(tag);
  return recorder_->message(issue, at, state);
}

void PostOffice::want_thread() {
  if (busy() && waiters_ == 0) wake_thread();
}

void PostOffice::wake_thread() {
  if (stopping_) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { run_thread(); });
  if (parked_) wanted_.notify_one();
}

void PostOffice::fail(const Failure& cause) {
  Lock lock(mutex_);
  if (failure_) return;
  segment_->raise_abort(cause);
  settle(segment_->abort_cause());
  unlock(lock);
}

void PostOffice::break_down(Failure failure) {
  if (failure_) return;
  segment_->raise_abort(failure);
  announce_ = segment_->abort_cause();
  settle(*announce_);
}

// From here on every call fails with the first cause.
void PostOffice::settle(const Failure& first) {
  failure_ = first;
  const std::string text = first.text.substr(0, 1024);
  MessageHeader header;
  header.kind = MessageKind::kAbort;
  header.type = static_cast<std::uint32_t>(DType::kU8);
  header.tag = static_cast<std::uint64_t>(first.code.value());
  header.count = text.size();
  header.suspect = first.suspect;
  for (const auto& each : peers_) {
    if (!each) continue;
    if (each->socket && !each->outbox.mid_message()) {
      // Sends what it can without waiting.
      each->socket->write({reinterpret_cast<const std::byte*>(&header), sizeof(header)},
                          {reinterpret_cast<const std::byte*>(text.data()), text.size()});
    }
    if (each->socket) each->socket->end_writing();
    each->outbox.clear();
    each->inbox.clear();
    each->active = false;
  }
  active_.clear();
  any_source_.clear();
  for (const auto& work : std::exchange(pending_, {})) {
    if (work->flight != 0) recorder_->finished(work->flight, false);
    if (work->has_listener()) untold_.push_back(work);
    work->fail(first);
  }
  wake_sleepers();
}

void PostOffice::begin(MessageWork& work) {
  if (std::exchange(work.begun, true) || work.flight == 0) return;
  recorder_->started(work.flight);
}

void PostOffice::complete(MessageWork& work) {
  const std::shared_ptr<MessageWork> kept = *work.pending;
  pending_.erase(work.pending);
  if (work.flight != 0) recorder_->finished(work.flight, true);
  if (kept->has_listener()) untold_.push_back(kept);
  kept->succeed();
  completed_ = true;
}

void PostOffice::wake_sleepers() {
  completed_ = false;
  if (sleeping_ == 0) return;
  segment_->ring(topology_.local_rank());
  const std::uint64_t one = 1;
  // Fails only if the counter is full; then nobody sleeps.
  (void)!::write(wake_fd_.get(), &one, sizeof(one));
}

void PostOffice::unlock(Lock& lock) {
  const auto failure = std::exchange(announce_, std::nullopt);
  std::vector<std::shared_ptr<MessageWork>> untold;
  if (tells()) {
    untold.swap(untold_);
  } else if (!untold_.empty()) {
    wake_thread();
  }
  lock.unlock();
  for (const auto& work : untold) work->tell_listener();
  if (!failure) return;
  const std::lock_guard announcing(announce_mutex_);
  if (on_failure_) on_failure_(*failure);
}

PostOffice::Peer& PostOffice::peer(Rank rank) {
  auto& found = peers_[static_cast<std::size_t>(rank)];
  if (found) return *found;
  found = std::make_unique<Peer>(*this, topology_.rank(), rank);
  if (rank != topology_.rank() && topology_.node_of(rank) == topology_.node()) {
    const int local = rank - topology_.first(topology_.node());
    found->node =
        std::make_unique<PeerRings>(segment_, arena_, topology_.local_rank(), local, generation_);
  }
  return *found;
}

void PostOffice::activate(Peer& other) {
  if (other.active) return;
  other.active = true;
  active_.push_back(&other);
  if (other.stream() == nullptr && links_) links_->want(other.rank);
}

void PostOffice::retire(Peer& other) {
  if (!other.active || other.busy()) return;
  other.active = false;
  std::erase(active_, &other);
}

void PostOffice::close() {
  bool delivering = false;
  {
    Lock lock(mutex_);
    if (stopping_) return;
    if (!pending_.empty()) {
      break_down({Errc::kAborted, topology_.rank(),
                  fmt::format("rank {} destroyed the group before its messages were done",
                              topology_.rank())});
    }
    delivering = !failure_ && !active_.empty();
  }
  {
    Lock lock(mutex_);
    if (delivering) drive(lock, nullptr, Clock::now() + kDeliveryTime);
    if (!failure_ && !active_.empty()) {
      break_down({Errc::kAborted, topology_.rank(),
                  fmt::format("rank {} ended before rank {} received its messages",
                              topology_.rank(), active_.front()->rank)});
    }
    stopping_ = true;
    if (!failure_) failure_ = Failure{Errc::kAborted, topology_.rank(), "the group has ended"};
    wanted_.notify_all();
    wake_sleepers();
    unlock(lock);
  }
  if (thread_.joinable()) thread_.join();
  {
    const std::lock_guard announcing(announce_mutex_);
    on_failure_ = nullptr;
  }
  const Lock lock(mutex_);
  for (int local = 0; local < topology_.local_size(); ++local) peer(topology_.global(local));
  peers_.clear();
  links_.reset();
}

}  // namespace ddp::runtime
