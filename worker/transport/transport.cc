#include "worker/transport/transport.h"

#include <poll.h>

#include <algorithm>

#include <fmt/format.h>
#include <time.h>

#include "common/base/errc.h"
#include "common/process/this_process.h"
#include "common/wait/wait_interrupt.h"
#include "worker/transport/futex.h"

namespace ddp::transport {
namespace {

// Bounds how late an abort by the agent is seen, or that the caller gives up.
constexpr std::chrono::microseconds kSleepLimit{20'000};
// A flag of another rank of the node cannot wake a rank that polls its links.
constexpr std::chrono::microseconds kPollLimit{500};
// Everything wakes a rank that is alone on its node, except a WaitInterrupt.
constexpr std::chrono::microseconds kAloneLimit{1'000'000};

}  // namespace

bool spinning_pays(int local_ranks) {
  return local_ranks <= static_cast<int>(allowed_cpus().size());
}

Transport::Transport(Topology topology, std::shared_ptr<Segment> segment,
                     std::shared_ptr<Arena> arena, LaneLinks links, bool spin)
    : topology_(std::move(topology)),
      segment_(std::move(segment)),
      arena_(std::move(arena)),
      links_(std::move(links.by_node)),
      make_rest_(std::move(links.make_rest)),
      spin_(spin) {
  links_.resize(static_cast<std::size_t>(topology_.nodes()));
  entries_.resize(2 * links_.size() + 1);
  DDP_CHECK(segment_->local_size() == topology_.local_size(), "segment for {}, node of {}",
            segment_->local_size(), topology_.local_size());
  adopt_links();
}

void Transport::adopt_links() {
  for (int node = 0; node < topology_.nodes(); ++node) {
    const auto& link = links_[static_cast<std::size_t>(node)];
    if (!link && make_rest_ && !topology_.begins_linked(node)) continue;
    DDP_CHECK((link ? link->peer() : -1) == topology_.lane_peer(node), "wrong link to node {}",
              node);
    if (link) link->explain_by(*segment_);
  }
}

Outcome Transport::make_all_links(TimePoint deadline) {
  if (!make_rest_) return {};
  const auto make = std::exchange(make_rest_, nullptr);
  const WaitInterrupt interrupt([this] { return segment_->aborted(); });
  const Outcome failure = make(links_, deadline);
  if (failure) {
    // The peer of a connection that ended may have heard of the round's end before this rank.
    if (failure->code == Errc::kPeerLost) (void)await_verdict(*segment_);
    return segment_->aborted() ? segment_->abort_cause() : failure;
  }
  adopt_links();
  return {};
}

void Transport::start_watch(const WatchOptions& options) {
  DDP_CHECK(!watch_, "the watch has already been started");
  std::vector<ControlPeer> peers;
  for (const auto& link : links_) {
    if (!link) continue;
    const int node = link->peer_node();
    peers.push_back({link->take_control(), link->peer(), node, topology_.beats_to(node)});
  }
  watch_ = std::make_shared<Watch>(topology_, segment_, std::move(peers), options);
}

void Transport::raise_abort(const Failure& cause) {
  segment_->raise_abort(cause);
  if (watch_) watch_->tell_nodes();
}

Failure Transport::shut_down(const Failure& cause) {
  raise_abort(cause);
  const Failure first = segment_->aborted() ? segment_->abort_cause() : cause;
  for (const auto& link : links_) {
    if (link) link->close(first);
  }
  return first;
}

Outcome Transport::wait(Idle& idle, TimePoint deadline) {
  // Spinning and yielding are too short for the deadline to matter.
  return idle.wait() ? sleep(idle, deadline) : Outcome{};
}

Outcome Transport::sleep(Idle& idle, TimePoint deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
  if (left.count() <= 0) return Failure{Errc::kTimeout, -1, ""};
  if (WaitInterrupt::raised_in_operation()) {
    return Failure{Errc::kAborted, topology_.rank(),
                   fmt::format("rank {} was interrupted while it waited", topology_.rank())};
  }

  int count = 0;
  bool wants_data = false;
  for (const auto& link : links_) {
    if (!link) continue;
    count += link->poll_entries(entries_.data() + count);
    wants_data = wants_data || link->wants_data();
  }
  if (wants_data) {
    // A rank that is alone on its node waits for nothing but its links and an abort. If it looked
    // every half millisecond, a hundred such ranks would keep a machine busy.
    const int abort_event = watch_ ? watch_->abort_event() : -1;
    const bool alone = topology_.local_size() == 1 && abort_event >= 0;
    if (alone) entries_[static_cast<std::size_t>(count++)] = pollfd{abort_event, POLLIN, 0};
    std::chrono::nanoseconds longest = alone ? kAloneLimit : kPollLimit;
    if (WaitInterrupt::set())
      longest =
          std::min<std::chrono::nanoseconds>(longest, WaitInterrupt::until_look(idle.since()));
    const auto limit = std::min<std::chrono::nanoseconds>(left, longest);
    const auto seconds = std::chrono::floor<std::chrono::seconds>(limit);
    const timespec timeout{seconds.count(), static_cast<long>((limit - seconds).count())};
    ::ppoll(entries_.data(), static_cast<nfds_t>(count), &timeout, nullptr);
  } else {
    futex_wait(segment_->doorbell(topology_.local_rank()).bell, idle.bell(),
               std::min<std::chrono::nanoseconds>(left, kSleepLimit));
  }
  idle.slept();
  return {};
}

}  // namespace ddp::transport
