#pragma once

#include <optional>
#include <string>

#include "common/base/environment.h"
#include "common/base/result.h"

// What a scheduler tells, through the environment, each ddp-run that it starts. Pure. SLURM has a
// room of its own (launcher/slurm), since ddp-run does more there than find its place.
namespace ddp::schedulers {

// The place of one ddp-run among those that the scheduler has started together. Each is a node.
struct Placement {
  // How the nodes find the first one if nothing else says it.
  enum class Meeting {
    kUnknown,      // The scheduler does not say.
    kFirstPod,     // By the name of this pod: first_pod() in kubernetes.h.
    kFirstHost,    // At `first_host`.
    kThisMachine,  // All of them are on this machine.
  };

  std::string scheduler;  // For people: "Kubernetes".
  std::string source;     // The variable that gives the rank, as it is: "JOB_COMPLETION_INDEX=2".
  int node_rank = 0;
  std::optional<int> num_nodes;  // Nothing: the scheduler does not say.
  int nodes_here = 1;            // Those on this machine.
  Meeting meeting = Meeting::kUnknown;
  std::string first_host;
  int port = 29'400;   // Where the first node's rendezvous listens.
  std::string job_id;  // The same on all nodes. Empty: not known.

  // What to do if the number of nodes, or the place to meet, is not known. Ends of a message.
  std::string size_remedy;
  std::string meeting_remedy;
  std::string one_a_machine;  // How to start one ddp-run on each machine.

  friend bool operator==(const Placement&, const Placement&) = default;
};

// Nothing if no scheduler has started this process, or only through another ddp-run. The message of
// kInvalidArgument names the variable that is wrong.
Result<std::optional<Placement>> read_placement(const GetEnvironment& environment);

}  // namespace ddp::schedulers
