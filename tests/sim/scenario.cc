#include "tests/sim/scenario.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tests/sim/random.h"

namespace ddp::sim {
namespace {

constexpr std::array<const char*, kFaultKinds> kNames{
    "worker killed",    "worker fails", "worker hangs",      "spawn fails",
    "agent crash",      "node killed",  "user signal",       "reset",
    "partition",        "agent paused", "coordinator crash", "node joins",
    "collective fails", "node returns", "job ended"};

Fault make_fault(Random& random) {
  static constexpr std::array<int, 8> kExitCodes{1, 1, 1, 2, 37, 73, 255, 65};
  Fault fault;
  // Half of the faults hit workers, as in life; the end of the job is rare, since nothing follows
  // it.
  fault.kind = static_cast<FaultKind>(random.between(0, kFaultKinds - 1));
  if (random.one_in(3)) fault.kind = FaultKind::kWorkerKilled;
  if (fault.kind == FaultKind::kJobEnded && !random.one_in(4)) fault.kind = FaultKind::kWorkerFails;
  fault.at = random.ms(0, kFaultsEnd.count());
  // Faults come in clusters: shortly after the start there is most to go wrong.
  if (random.one_in(3)) fault.at = random.ms(0, 4'000);
  fault.choice = random.between(0, 1'000);
  fault.length = random.one_in(4) ? Duration{0} : random.ms(50, 12'000);
  fault.status = fault.kind == FaultKind::kWorkerFails
                     ? kExitCodes.at(static_cast<std::size_t>(random.between(0, 7)))
                     : (random.one_in(2) ? 9 : 11);
  return fault;
}

}  // namespace

Scenario make_scenario(std::uint64_t seed) {
  Random random(seed * 2'654'435'761 + 1);
  Scenario scenario;
  config::JobSpec& job = scenario.job;
  job.job_id = "sim";
  job.rules.max_nodes = static_cast<int>(random.between(1, 4));
  job.rules.min_nodes = random.one_in(2) ? job.rules.max_nodes
                                         : static_cast<int>(random.between(1, job.rules.max_nodes));
  job.rules.max_restarts = static_cast<int>(random.between(0, 4));
  job.rules.join_timeout_ms = random.between(5'000, 40'000);
  job.rules.last_call_ms = random.between(0, 3'000);
  job.rules.stop_timeout_ms = random.between(100, 3'000);
  job.coordinator_timeout_ms = random.between(3'000, 20'000);
  job.coordinator_host = "127.0.0.1";
  job.coordinator_port = 29'400;
  scenario.with_node_ranks = random.one_in(3);
  // Sometimes too few, sometimes spares.
  std::int64_t nodes = job.rules.max_nodes;
  if (random.one_in(4)) nodes = random.between(job.rules.min_nodes, job.rules.max_nodes + 1);
  if (random.one_in(16)) nodes = std::max(1, job.rules.min_nodes - 1);
  if (scenario.with_node_ranks) nodes = std::min<std::int64_t>(nodes, job.rules.max_nodes);
  for (std::int64_t i = 0; i < nodes; ++i) scenario.node_starts.push_back(random.ms(0, 2'000));
  scenario.work = random.ms(10, 12'000);
  job.rules.restart_on_start_failure = !random.one_in(4);
  job.rules.max_no_progress = static_cast<int>(random.between(0, 4));
  job.rules.scale_up_ms = random.one_in(4) ? 0 : random.between(10, 3'000);
  // 0 to 3: often small, because a history has few failures.
  job.rules.max_node_failures = static_cast<int>(seed % 4);
  job.progress_timeout_ms = random.one_in(2) ? 0 : random.between(1'500, 6'000);
  const std::int64_t kinds = random.between(1, 7);
  scenario.with_plain = (kinds & 1) != 0;
  scenario.with_reporting = (kinds & 2) != 0;
  scenario.with_reconfigurable = (kinds & 4) != 0;
  scenario.with_records = random.one_in(3);
  scenario.with_replicas = scenario.with_records && !random.one_in(3);
  scenario.through_wire = random.one_in(16);
  if (random.one_in(16)) {
    // Long enough that a late node is found, and mostly with a spare for it.
    scenario.with_straggler = true;
    scenario.with_plain = false;
    scenario.with_reporting = scenario.with_reporting || !scenario.with_reconfigurable;
    scenario.work = random.ms(60'000, 90'000);
    job.rules.exclude_stragglers = 1.5;
    job.progress_timeout_ms = 0;  // Steps take longer than any of the above.
    job.rules.max_nodes = std::max(job.rules.max_nodes, 2);
    job.rules.min_nodes = job.rules.max_nodes;
    if (!scenario.with_node_ranks && !random.one_in(4)) {
      scenario.node_starts.resize(static_cast<std::size_t>(job.rules.max_nodes) + 1,
                                  Duration{2'000});
    }
  }
  // One seed in eight has no fault at all: it must end well.
  if (random.one_in(8)) return scenario;
  const std::int64_t count = random.between(1, 8);
  for (std::int64_t i = 0; i < count; ++i) scenario.faults.push_back(make_fault(random));
  if (!random.one_in(4)) return scenario;
  // While the coordinator is away there is most to go wrong.
  Fault crash = make_fault(random);
  crash.kind = FaultKind::kCoordinatorCrash;
  crash.length = random.ms(50, 4'000);
  scenario.faults.push_back(crash);
  Fault other = make_fault(random);
  other.at = crash.at + random.ms(-1'000, crash.length.count() + 500);
  // What hangs goes on at the end of the faults.
  other.at = std::clamp(other.at, Duration{0}, kFaultsEnd - Duration{1});
  scenario.faults.push_back(other);
  return scenario;
}

std::string describe(const Scenario& scenario) {
  const config::JobSpec& job = scenario.job;
  std::string text = fmt::format(
      "--nnodes {}:{} --max-restarts {}, join {} ms, last call {} ms, stop {} ms, coordinator {} "
      "ms, "
      "{} nodes{}, work {} ms, {} start failures, no progress {}, scale-up {} ms, progress timeout "
      "{} ms, workers{}{}{}{}{}\n",
      job.rules.min_nodes, job.rules.max_nodes, job.rules.max_restarts, job.rules.join_timeout_ms,
      job.rules.last_call_ms, job.rules.stop_timeout_ms, job.coordinator_timeout_ms,
      scenario.node_starts.size(), scenario.with_node_ranks ? " with node ranks" : "",
      scenario.work.count(), job.rules.restart_on_start_failure ? "restarts" : "ends by",
      job.rules.max_no_progress, job.rules.scale_up_ms, job.progress_timeout_ms,
      scenario.with_plain ? " plain" : "", scenario.with_reporting ? " reporting" : "",
      scenario.with_reconfigurable ? " reconfigurable" : "",
      scenario.with_replicas  ? ", with replicas"
      : scenario.with_records ? ", with records"
                              : "",
      scenario.with_straggler ? ", with a straggler" : "");
  for (const Fault& fault : scenario.faults) {
    text += fmt::format("  {:>6} ms: {}, for {} ms, status {}\n", fault.at.count(),
                        kNames.at(static_cast<std::size_t>(fault.kind)), fault.length.count(),
                        fault.status);
  }
  return text;
}

}  // namespace ddp::sim
