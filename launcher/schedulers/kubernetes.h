#pragma once

#include <optional>
#include <string>

#include "common/base/environment.h"
#include "common/base/result.h"
#include "launcher/schedulers/placement.h"

// Pods of an Indexed Job of Kubernetes, alone or in a JobSet. Pure.
//
// Kubernetes sets JOB_COMPLETION_INDEX, from 0 ("Indexed Job for Parallel Processing with Static
// Work Assignment"), and the host name JOB-INDEX. With a headless Service whose name is the pods'
// `subdomain`, the pods reach each other as JOB-INDEX.SUBDOMAIN ("Job with Pod-to-Pod
// Communication"), and a pod's own full name ends with that of its Service ("DNS for Services and
// Pods"). Nothing in a pod says how many there are, so the manifest does, as PET_NNODES.
namespace ddp::schedulers {

// Nothing outside of an Indexed Job.
Result<std::optional<Placement>> read_kubernetes(const GetEnvironment& environment);

struct FirstPod {
  std::string host;  // Where pod 0 is reached.
  std::string job;   // The Job's name.
};

// `full_name`: what `hostname -f` says in the pod with that index. kInvalidArgument if it is not
// JOB-INDEX.SUBDOMAIN...; the message says what the manifest lacks.
Result<FirstPod> first_pod(const std::string& full_name, int index);

}  // namespace ddp::schedulers
