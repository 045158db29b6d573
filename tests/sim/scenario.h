#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/config/job_spec.h"

namespace ddp::sim {

enum class FaultKind {
  kWorkerKilled,      // A live worker ends by a signal.
  kWorkerFails,       // A live worker ends with an exit code.
  kWorkerHangs,       // A worker makes no progress until the faults end.
  kSpawnFails,        // The next spawn of a node fails for one worker.
  kAgentCrash,        // SIGKILL of an agent; its ddp-run starts a successor.
  kNodeKilled,        // SIGKILL of a ddp-run; perhaps somebody starts another.
  kUserSignal,        // The user stops one node.
  kConnectionReset,   // An agent's connection breaks.
  kPartition,         // A node and the coordinator do not reach each other for a while.
  kAgentPaused,       // An agent does not run for a while (SIGSTOP, swapping).
  kCoordinatorCrash,  // The coordinator's process dies and comes back empty, or never.
  kNodeJoins,         // One more node comes.
  kCollectiveFails,   // A worker's operation fails although nobody has ended: a link between two.
  kNodeReturns,       // A ddp-run is killed, its connection stays open; another one takes its rank.
  kJobEnded,          // The user interrupts the ddp-run that hosts the coordinator.
};
inline constexpr int kFaultKinds = 15;

struct Fault {
  FaultKind kind{};
  Duration at{0};
  std::int64_t choice = 0;  // Picks the victim among those there are.
  Duration length{0};       // Of a partition, pause or outage; 0: for ever, where that is possible.
  int status = 0;           // Signal or exit code.
};

// Everything that a seed decides before the simulation begins.
struct Scenario {
  config::JobSpec job;                // Common part of every node.
  std::vector<Duration> node_starts;  // When each ddp-run is typed.
  bool with_node_ranks = false;
  Duration work{0};  // What a round takes once all workers are there, from its first step on.
  // What kinds of workers there are: those that know nothing of us, those that report progress, and
  // those that can take part in the next round without being started again.
  bool with_plain = true;
  bool with_reporting = false;
  bool with_reconfigurable = false;
  bool with_records = false;  // The coordinator's record of the job outlives it.
  // Of records: ddp-runs keep them. One of these coordinates, and may end with the coordinator.
  bool with_replicas = false;
  bool obliging = false;  // Workers do at once what they are told.
  int nproc_max = 3;
  bool with_straggler = false;  // The first node computes three times as long as the others.
  std::vector<Fault> faults;
  bool through_wire = false;  // Messages are encoded and decoded on their way.
};

inline constexpr Duration kFaultsEnd{30'000};

Scenario make_scenario(std::uint64_t seed);

// For people who look into a failing seed.
std::string describe(const Scenario& scenario);

}  // namespace ddp::sim
