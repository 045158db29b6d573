#include "tests/sim/replicas_simulation.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace ddp::sim {
namespace {

constexpr int kEndpointPort = 29'400;
constexpr Duration kTick{30};
constexpr Duration kFaults{20'000};
constexpr Duration kHealing{15'000};
constexpr Duration kLastCall{2'000};

}  // namespace

ReplicasSimulation::ReplicasSimulation(std::uint64_t seed, bool verbose)
    : random_(seed),
      has_resets_(seed >= kWithResets),
      verbose_(verbose),
      nodes_(static_cast<int>(random_.between(3, 6))),
      voters_(nodes_ >= 5 && random_.one_in(2) ? 5 : 3),
      gentle_(!random_.one_in(3)) {}

HostPort ReplicasSimulation::place(int node, int port) {
  return {.host = fmt::format("n{}", node), .port = port};
}

void ReplicasSimulation::log(const std::string& line) const {
  if (verbose_) fmt::print("{:7} {}\n", queue_.now_ms(), line);
}

void ReplicasSimulation::violate(const std::string& what) {
  log("VIOLATION: " + what);
  if (!violation_) violation_ = what;
}

TimePoint ReplicasSimulation::clock(const Process& process) const {
  const auto elapsed = static_cast<double>(queue_.now_ms());
  return TimePoint{} + process.offset + Duration(static_cast<std::int64_t>(elapsed * process.rate));
}

std::vector<int> ReplicasSimulation::living() const {
  std::vector<int> living;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (processes_[i].alive) living.push_back(static_cast<int>(i));
  }
  return living;
}

bool ReplicasSimulation::reaches(int from, int to) const {
  return !cut_.contains({processes_[static_cast<std::size_t>(from)].node,
                         processes_[static_cast<std::size_t>(to)].node});
}

// ---- processes ----

void ReplicasSimulation::start(int node) {
  const int index = static_cast<int>(processes_.size());
  const bool founds = node == 0;
  Process process;
  process.node = node;
  process.port = founds ? kEndpointPort : 30'000 + index;
  process.offset = random_.ms(0, 100'000);
  process.rate = static_cast<double>(random_.between(95, 105)) / 100;
  by_port_[process.port] = index;
  processes_.push_back(std::move(process));
  Process& own = processes_.back();
  own.replica = std::make_unique<replicas::JobReplica>(
      static_cast<replicas::MemberId>(index + 1), place(node, own.port),
      replicas::ReplicaOptions{
          .job_id = "job",
          .raft = {.seed = static_cast<std::uint32_t>(random_.between(1, 1 << 30))},
          .voters = voters_,
          .endpoint = place(0, kEndpointPort)},
      replicas::JobReplica::Events{
          .send = [this, index](
                      const HostPort& to,
                      const replicas::ReplicaMessage& message) { send(index, to, message); },
          .won = [this, index](const rendezvous::JobRecord& record) { won(index, record); },
          .lost = [this, index] { lost(index); },
          .moved =
              [this, index](const HostPort& at) {
                log(fmt::format("p{} is told of {}:{}", index, at.host, at.port));
              }});
  log(fmt::format("p{} starts on n{}", index, node));
  if (founds) {
    own.replica->found(clock(own));
  } else {
    own.replica->join(clock(own));
  }
  tick(index);
}

void ReplicasSimulation::tick(int index) {
  Process& process = processes_[static_cast<std::size_t>(index)];
  if (!process.alive) return;
  if (process.stopped_until > queue_.now()) {
    return queue_.at(process.stopped_until, [this, index] { tick(index); });
  }
  while (!process.stopped.empty() && process.alive) {
    const auto message = process.stopped.front();
    process.stopped.pop_front();
    process.replica->receive(clock(process), message);
  }
  process.replica->tick(clock(process));
  queue_.after(kTick, [this, index] { tick(index); });
}

void ReplicasSimulation::send(int from, const HostPort& to,
                              const replicas::ReplicaMessage& message) {
  processes_[static_cast<std::size_t>(from)].group = message.group;
  const auto found = by_port_.find(to.port);
  if (found == by_port_.end() || !reaches(from, found->second)) return;
  const int receiver = found->second;
  if (random_.one_in(50)) {  // It takes most of the time.
    const auto sent = replicas::decode_replica_message(replicas::encode(message));
    if (!sent || *sent != message) return violate("a message changes on its way");
  }
  for (int copies = random_.one_in(50) ? 2 : 1; copies > 0; --copies) {
    if (random_.between(1, 100) <= loss_percent_) continue;
    const auto resets = [this, from, receiver] {
      return processes_[static_cast<std::size_t>(from)].resets +
             processes_[static_cast<std::size_t>(receiver)].resets;
    };
    queue_.after(random_.ms(0, max_delay_ms_),
                 [this, receiver, message, resets, before = resets()] {
                   if (resets() == before) arrive(receiver, message);
                 });
  }
}

void ReplicasSimulation::arrive(int index, const replicas::ReplicaMessage& message) {
  Process& process = processes_[static_cast<std::size_t>(index)];
  if (!process.alive) return;
  if (process.stopped_until > queue_.now()) {
    process.stopped.push_back(message);
  } else {
    process.replica->receive(clock(process), message);
  }
}

// ---- coordinating ----

void ReplicasSimulation::won(int index, const rendezvous::JobRecord& record) {
  Process& process = processes_[static_cast<std::size_t>(index)];
  process.next_round = record.next_round;
  process.storing = false;
  process.won_at = queue_.now();
  process.office = ++offices_;
  log(fmt::format("p{} coordinates from round {} (office {})", index, record.next_round,
                  process.office));
  if (const Round begun = begun_[process.group].round; record.next_round <= begun) {
    violate(fmt::format("p{} coordinates from round {}, but {} has begun", index, record.next_round,
                        begun));
  }
  if (offices_ > 1) ++coverage_->take_overs;
  if (without_coordinator_since_) {
    const auto took =
        std::chrono::duration_cast<Duration>(queue_.now() - *without_coordinator_since_);
    coverage_->slowest_ms =
        std::max(coverage_->slowest_ms, static_cast<std::uint64_t>(took.count()));
    without_coordinator_since_.reset();
  }
}

void ReplicasSimulation::lost(int index) {
  Process& process = processes_[static_cast<std::size_t>(index)];
  log(fmt::format("p{} no longer coordinates", index));
  process.office = 0;
  if (process.next_round == 0) ++coverage_->yields;
  for (const int other : living()) {
    if (processes_[static_cast<std::size_t>(other)].joined_to == index) disconnect_agent(other);
  }
}

bool ReplicasSimulation::last_call_is_over(int index) const {
  const Process& process = processes_[static_cast<std::size_t>(index)];
  if (process.next_round > 0) return true;
  if (queue_.now() - process.won_at < kLastCall) return false;
  for (const int other : living()) {
    const Process& earlier = processes_[static_cast<std::size_t>(other)];
    const bool is_heard = reaches(other, index) && earlier.stopped_until <= queue_.now() &&
                          loss_percent_ == 0 && max_delay_ms_ <= 5;
    if (other != index && earlier.office != 0 && earlier.next_round > 0 && !is_heard) return false;
  }
  return true;
}

// A round needs more than half of the nodes, and begins once its number is stored.
void ReplicasSimulation::begin_round(int index) {
  Process& process = processes_[static_cast<std::size_t>(index)];
  const auto others = std::count_if(
      processes_.begin(), processes_.end(),
      [index](const Process& other) { return other.alive && other.joined_to == index; });
  if (!process.replica->leads() || process.office == 0 || process.storing) return;
  if (2 * (others + 1) <= nodes_ || !last_call_is_over(index)) return;
  process.storing = true;
  const Round round = process.next_round++;
  rendezvous::JobRecord record;
  record.job_id = "job";
  record.next_round = process.next_round;
  ++coverage_->failed_stores;
  process.replica->store(record, [this, index, office = process.office, round] {
    --coverage_->failed_stores;
    processes_[static_cast<std::size_t>(index)].storing = false;
    round_begun(index, office, round);
  });
}

void ReplicasSimulation::round_begun(int index, std::uint64_t office, Round round) {
  log(fmt::format("p{} begins round {}", index, round));
  ++coverage_->rounds;
  const replicas::MemberId group = processes_[static_cast<std::size_t>(index)].group;
  const auto place = [this](replicas::MemberId each) {
    return std::find(groups_.begin(), groups_.end(), each) - groups_.begin();
  };
  // A ddp-run that was cut off while the others began the job again may go on with the old one:
  // then there are two jobs (README.md of launcher/replicas). But not if its node has been in the
  // new one.
  if (place(processes_[static_cast<std::size_t>(index)].took_part_in) > place(group)) {
    violate(fmt::format("p{} goes on with an old job", index));
  }
  if (place(group) == std::ssize(groups_)) groups_.push_back(group);
  if (group_ != 0 && group != group_) {
    if (gentle_) violate(fmt::format("p{} begins the job again", index));
    ++coverage_->new_jobs;
  }
  group_ = group;
  Begun& begun = begun_[group];
  if (round <= begun.round) {
    violate(fmt::format("p{} begins round {} after round {}", index, round, begun.round));
  }
  if (office < begun.office) violate(fmt::format("p{} begins a round after its office", index));
  begun.round = std::max(begun.round, round);
  begun.office = std::max(begun.office, office);
  for (const int other : living()) {
    Process& process = processes_[static_cast<std::size_t>(other)];
    if (process.joined_to != index && other != index) continue;
    process.last_round = round;
    process.took_part_in = group;
  }
}

void ReplicasSimulation::confirm(int index) {
  Process& process = processes_[static_cast<std::size_t>(index)];
  if (!process.replica->leads() || process.office == 0) return;
  process.replica->confirm([this, index, office = process.office, group = process.group] {
    if (office < begun_[group].office) violate(fmt::format("p{} is told that it leads", index));
  });
}

// ---- agents ----

void ReplicasSimulation::connect_agent(int index) {
  Process& own = processes_[static_cast<std::size_t>(index)];
  const HostPort at = own.replica->coordinator().value_or(place(0, kEndpointPort));
  auto found = by_port_.find(at.port);
  if (found == by_port_.end() || !reaches(index, found->second) || !reaches(found->second, index)) {
    return;
  }
  // A daemon that stands by says where the coordinator is.
  const Process& asked = processes_[static_cast<std::size_t>(found->second)];
  if (!asked.replica->leads() && asked.replica->coordinator()) {
    found = by_port_.find(asked.replica->coordinator()->port);
    if (found == by_port_.end()) return;
  }
  const int other = found->second;
  if (other == index) return;
  Process& coordinator = processes_[static_cast<std::size_t>(other)];
  if (!coordinator.alive || !coordinator.replica->leads() || !reaches(index, other) ||
      !reaches(other, index) || coordinator.stopped_until > queue_.now()) {
    return;
  }
  own.joined_to = other;
  coordinator.replica->on_joined(clock(coordinator), static_cast<replicas::MemberId>(index + 1),
                                 place(own.node, own.port),
                                 {.was_joined = own.was_joined, .last_round = own.last_round});
  own.was_joined = true;
}

void ReplicasSimulation::disconnect_agent(int index) {
  Process& own = processes_[static_cast<std::size_t>(index)];
  if (own.joined_to < 0) return;
  Process& coordinator = processes_[static_cast<std::size_t>(own.joined_to)];
  own.joined_to = -1;
  if (!coordinator.alive) return;
  coordinator.replica->on_gone(clock(coordinator), static_cast<replicas::MemberId>(index + 1),
                               false);
}

void ReplicasSimulation::look_at_agents() {
  for (const int index : living()) {
    Process& own = processes_[static_cast<std::size_t>(index)];
    const int other = own.joined_to;
    if (other < 0) {
      connect_agent(index);
    } else if (!processes_[static_cast<std::size_t>(other)].alive || !reaches(index, other) ||
               !reaches(other, index) ||
               own.replica->coordinator() !=
                   place(processes_[static_cast<std::size_t>(other)].node,
                         processes_[static_cast<std::size_t>(other)].port)) {
      // The endpoint is known without being told.
      if (own.replica->coordinator() || !processes_[static_cast<std::size_t>(other)].alive ||
          !reaches(index, other)) {
        disconnect_agent(index);
      }
    }
  }
  for (const int index : living()) {
    if (processes_[static_cast<std::size_t>(index)].stopped_until > queue_.now()) continue;
    if (random_.one_in(5)) begin_round(index);
    if (random_.one_in(5)) confirm(index);
  }
  queue_.after(random_.ms(50, 300), [this] { look_at_agents(); });
}

void ReplicasSimulation::check_end() {
  const auto alive = living();
  std::vector<int> leaders;
  for (const int index : alive) {
    if (processes_[static_cast<std::size_t>(index)].replica->leads()) leaders.push_back(index);
  }
  if (leaders.size() != 1) {
    return violate(fmt::format("{} coordinate when all is well", leaders.size()));
  }
  const Process& leader = processes_[static_cast<std::size_t>(leaders.front())];
  for (const int index : alive) {
    const auto& told = processes_[static_cast<std::size_t>(index)].replica->coordinator();
    if (told && *told != place(leader.node, leader.port)) {
      violate(fmt::format("p{} looks for the coordinator at {}:{}", index, told->host, told->port));
    }
    if (index != leaders.front() &&
        processes_[static_cast<std::size_t>(index)].joined_to != leaders.front()) {
      violate(
          fmt::format("the agent of p{} is not with the coordinator p{}", index, leaders.front()));
    }
  }
}

std::optional<std::string> ReplicasSimulation::run(ReplicasCoverage& coverage) {
  coverage_ = &coverage;
  processes_.reserve(1'000);  // References into it are kept.
  for (int node = 0; node < nodes_; ++node) {
    queue_.after(node == 0 ? Duration(0) : random_.ms(0, 500), [this, node] { start(node); });
  }
  queue_.after(random_.ms(50, 300), [this] { look_at_agents(); });
  queue_.after(random_.ms(2'000, 5'000), [this] { fault(); });
  const TimePoint healed = queue_.now() + kFaults;
  while (!violation_ && queue_.run_one(healed)) {
  }
  faults_are_over_ = true;
  cut_.clear();
  loss_percent_ = 0;
  max_delay_ms_ = 5;
  const std::uint64_t before = coverage_->rounds;
  const TimePoint end = healed + kHealing;
  while (!violation_ && queue_.run_one(end)) {
  }
  if (!violation_ && gentle_) {
    check_end();
    if (coverage_->rounds <= before) violate("no round begins when all is well");
  }
  return violation_;
}

}  // namespace ddp::sim
