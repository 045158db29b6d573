#include "launcher/plan/scheduled_endpoint.h"

#include <utility>

#include "common/base/exit_error.h"
#include "launcher/schedulers/kubernetes.h"

namespace ddp::plan {

Result<flags::Options> with_scheduled_endpoint(flags::Options options,
                                               const machine::Machine& machine) {
  using Meeting = schedulers::Placement::Meeting;
  if (!options.placement || options.endpoint || !options.meeting_file.empty()) return options;
  const schedulers::Placement& placement = *options.placement;
  if (placement.meeting == Meeting::kFirstPod) {
    auto pod = schedulers::first_pod(machine.full_name(), placement.node_rank);
    if (!pod) {
      return exit_error(kExitInvalidValue, "{}: {}", placement.source, pod.error().message);
    }
    options.endpoint = HostPort{std::move(pod->host), placement.port};
    if (!options.job_id) options.job_id = std::move(pod->job);
  }
  if (placement.meeting == Meeting::kThisMachine)
    options.endpoint = HostPort{"127.0.0.1", placement.port};
  if (placement.meeting == Meeting::kFirstHost)
    options.endpoint = HostPort{placement.first_host, placement.port};
  options.endpoint_flag = placement.source;
  options.endpoint_is_master = true;  // Its name may not lead there yet.
  return options;
}

}  // namespace ddp::plan
