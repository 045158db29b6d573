#include "worker/transport/watch.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <span>
#include <stdexcept>

#include <fmt/format.h>
#include <pthread.h>

#include "common/base/check.h"
#include "common/base/errc.h"
#include "common/base/host_name.h"
#include "common/wire/flight_ring.h"
#include "worker/transport/futex.h"

namespace ddp::transport {
namespace {

constexpr Duration kPollPeriod{5};
constexpr Duration kLongestBeat{50};      // Inside a node: a word in memory.
constexpr Duration kAloneBeat{1'000};     // Nobody looks at it.
constexpr Duration kLongestNetBeat{250};  // Between nodes: a packet to each.
// In a ring. Each packet wakes a thread: four a second from both neighbours kept two cores busy on
// a machine with a thousand ranks.
constexpr Duration kLongestRingBeat{1'000};
constexpr Duration kShortestBeat{10};
constexpr int kBeatsPerTimeout = 10;
constexpr Duration kForever{std::chrono::hours(1)};
constexpr std::size_t kFutexesMax = 128;  // FUTEX_WAITV_MAX of <linux/futex.h>.

Duration beat_for(Duration stall_timeout, Duration longest) {
  if (stall_timeout.count() == 0) return longest;
  return std::clamp(stall_timeout / kBeatsPerTimeout, kShortestBeat, longest);
}

Duration net_beat_for(Duration stall_timeout, const Topology& topology) {
  return beat_for(stall_timeout, topology.beats_in_ring() ? kLongestRingBeat : kLongestNetBeat);
}

// How long this thread has watched since `seen`, which is advanced. Time in which the thread did
// not run does not count.
Duration watched(TimePoint& seen, TimePoint now, Duration beat) {
  const auto passed = std::chrono::duration_cast<Duration>(now - seen);
  seen += passed;
  return std::min(passed, 2 * beat);
}

// Blocks all signals: they are for the user's threads.
void begin_thread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

futex_waitv entry(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  futex_waitv entry{};
  entry.val = value;
  entry.uaddr = reinterpret_cast<std::uintptr_t>(&word);
  entry.flags = FUTEX_32;
  return entry;
}

// Returns false if the kernel cannot do it or does not allow it.
bool wait_for_any(std::span<futex_waitv> words, TimePoint until) {
  // std::chrono::steady_clock is CLOCK_MONOTONIC.
  const auto at = std::chrono::duration_cast<std::chrono::nanoseconds>(until.time_since_epoch());
  timespec timeout{};
  timeout.tv_sec = static_cast<std::time_t>(at.count() / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(at.count() % 1'000'000'000);
  const long woken =
      ::syscall(SYS_futex_waitv, words.data(), words.size(), 0, &timeout, CLOCK_MONOTONIC);
  return woken >= 0 || (errno != ENOSYS && errno != EPERM && errno != EINVAL);
}

// Nothing if there is no event.
void signal(const UniqueFd& event) {
  const std::uint64_t one = 1;
  (void)!::write(event.get(), &one, sizeof(one));
}

// " (pid 4711 on node7, in all_reduce #17)", as far as the rank's flight recorder tells.
std::string traces_of(const Segment& segment, int local) {
  const auto flight = wire::read_flight(segment.flight(local));
  if (!flight) return "";
  std::string doing;
  if (!flight->records.empty()) {
    const wire::FlightRecord& last = flight->records.back();
    const bool over =
        last.state == wire::FlightState::kDone || last.state == wire::FlightState::kFailed;
    doing =
        fmt::format(", {} {} #{}", over ? "after" : "in", wire::operation_of(last), last.sequence);
  }
  return fmt::format(" (pid {} on {}{})", flight->pid, host_name(), doing);
}

}  // namespace

Watch::Watch(const Topology& topology, std::shared_ptr<Segment> segment,
             std::vector<ControlPeer> peers, const WatchOptions& options)
    : topology_(topology),
      segment_(std::move(segment)),
      options_(options),
      polling_(options.force_polling),
      links_(std::move(peers)) {
  const int size = topology_.local_size();
  for (int step = 1; step < size; ++step) {
    neighbours_.push_back({(topology_.local_rank() + step) % size});
  }
  awaited_.reserve(neighbours_.size());
  if (!links_.empty()) {
    for (UniqueFd* event : {&net_stop_, &abort_event_}) {
      event->reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      DDP_CHECK(static_cast<bool>(*event), "eventfd: errno {}", errno);
    }
  }
  thread_ = std::thread([this] { run(); });
  if (!links_.empty()) {
    // Peers only miss a rank that they have heard from, so send a beat before anything can happen
    // to this rank.
    links_.introduce(host_name());
    links_.beat(net_beat_for(options_.stall_timeout, topology_));
    net_thread_ = std::thread([this] { run_net(); });
  }
  while (ready_.load() == 0) futex_wait(ready_, 0, kForever);
}

Watch::~Watch() {
  stop_.store(1);
  futex_wake_all(stop_);
  if (net_thread_.joinable()) {
    signal(net_stop_);
    net_thread_.join();
  }
  thread_.join();
  if (segment_->aborted()) {
    tell_nodes();
  } else {
    links_.tell_leave();
  }
}

void Watch::tell_nodes() {
  if (!links_.empty() && segment_->aborted()) links_.tell_abort(segment_->abort_cause());
}

void Watch::raise(const Failure& cause) {
  segment_->raise_abort(cause);
  tell_nodes();
}

// ---- inside the node ----

void Watch::run() {
  begin_thread("ddp-watch");
  LifeLine& line = segment_->lifeline(topology_.local_rank());
  LifeLineHold hold(line);
  ready_.store(1);
  futex_wake_all(ready_);
  const Duration beat =
      neighbours_.empty() ? kAloneBeat : beat_for(options_.stall_timeout, kLongestBeat);
  TimePoint seen = Clock::now();
  TimePoint next_beat = seen;
  while (!stopping()) {
    const TimePoint now = Clock::now();
    if (now >= next_beat) {
      hold.retry();
      line.beats.fetch_add(1);
      next_beat = now + beat;
    }
    if (segment_->aborted()) {
      // There is nothing left to watch, but this rank must not seem to be gone.
      signal(abort_event_);
      tell_nodes();
      futex_wait(stop_, 0, kForever);
      continue;
    }
    examine(watched(seen, now, beat));
    if (!segment_->aborted()) sleep(next_beat);
  }
}

void Watch::examine(Duration passed) {
  awaited_.clear();
  for (Neighbour& neighbour : neighbours_) {
    LifeLine& line = segment_->lifeline(neighbour.local);
    const Rank rank = topology_.global(neighbour.local);
    const LifeSign sign = look_at(line);
    if (sign.kind == LifeSign::Kind::kDead) {
      return raise({Errc::kPeerLost, rank,
                    fmt::format("rank {} died{}", rank, traces_of(*segment_, neighbour.local))});
    }
    awaited_.push_back(sign);
    const std::uint32_t beats = line.beats.load();
    if (sign.kind == LifeSign::Kind::kAbsent || beats != neighbour.beats) {
      neighbour.beats = beats;
      neighbour.silent = Duration{0};
      continue;
    }
    neighbour.silent += passed;
    if (options_.stall_timeout.count() > 0 && neighbour.silent >= options_.stall_timeout) {
      return raise(
          {Errc::kTimeout, rank,
           fmt::format(
               "rank {} has not run for {} ms{}: it is stopped, or its machine is overloaded", rank,
               neighbour.silent.count(), traces_of(*segment_, neighbour.local))});
    }
  }
}

void Watch::sleep(TimePoint until) {
  if (polling_) {
    futex_wait(stop_, 0, kPollPeriod);
    return;
  }
  std::array<futex_waitv, kFutexesMax> words{entry(stop_, 0), entry(segment_->abort_word(), 0)};
  std::size_t count = 2;
  for (const LifeSign& sign : awaited_) {
    // A futex too many for this rank is watched by another: each sleeps on those that follow it.
    if (count == words.size()) break;
    words[count++] = entry(*sign.word, sign.value);
  }
  if (!wait_for_any(std::span(words).first(count), until)) polling_ = true;
}

// ---- between the nodes ----

void Watch::run_net() {
  begin_thread("ddp-watch-net");
  const Duration beat = net_beat_for(options_.stall_timeout, topology_);
  TimePoint seen = Clock::now();
  TimePoint next_beat = seen;
  while (!stopping() && !segment_->aborted()) {
    const TimePoint now = Clock::now();
    if (now >= next_beat) {
      links_.beat(beat);
      next_beat = now + beat;
    }
    const Duration passed = watched(seen, now, beat);
    if (const auto failure = links_.listen(passed, options_.stall_timeout)) return raise(*failure);
    auto wait = std::chrono::ceil<Duration>(next_beat - now);
    if (links_.waits_for_explanation()) wait = std::min(wait, kShortestBeat);
    links_.wait(net_stop_.get(), wait);
  }
}

Duration stall_timeout_from_environment(Duration otherwise) {
  const char* text = std::getenv("DDP_STALL_TIMEOUT_MS");  // NOLINT(concurrency-mt-unsafe)
  if (text == nullptr) return otherwise;
  std::int64_t value = -1;
  const char* end = text + std::strlen(text);
  const auto [parsed, error] = std::from_chars(text, end, value);
  if (error != std::errc() || parsed != end || value < 0 || value > 86'400'000) {
    throw std::invalid_argument(
        fmt::format("DDP_STALL_TIMEOUT_MS={}: expected a number from 0 (off) to 86400000", text));
  }
  return Duration{value};
}

}  // namespace ddp::transport
