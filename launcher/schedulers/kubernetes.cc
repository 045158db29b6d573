#include "launcher/schedulers/kubernetes.h"

#include <fmt/format.h>

#include "launcher/schedulers/variables.h"

namespace ddp::schedulers {
namespace {

constexpr const char* kIndex = "JOB_COMPLETION_INDEX";

}  // namespace

Result<std::optional<Placement>> read_kubernetes(const GetEnvironment& environment) {
  const auto index = number_of(environment, kIndex);
  if (!index) return index.error();
  if (!*index) return std::optional<Placement>();
  Placement placement;
  placement.scheduler = "Kubernetes";
  placement.source = fmt::format("{}={}", kIndex, **index);
  placement.node_rank = **index;
  placement.meeting = Placement::Meeting::kFirstPod;
  placement.size_remedy =
      "give the container the variable PET_NNODES with the Job's number of completions, or 1 if "
      "each pod is a job of its own";
  return std::optional<Placement>(std::move(placement));
}

Result<FirstPod> first_pod(const std::string& full_name, int index) {
  const auto dot = full_name.find('.');
  if (dot == std::string::npos) {
    return make_error(
        Errc::kInvalidArgument,
        "this pod's full name is {}, and other pods cannot find a name without a domain; give the "
        "pods `subdomain: NAME` and make a headless Service of that name, or name pod 0's address "
        "with PET_RDZV_ENDPOINT",
        full_name);
  }
  const std::string own = full_name.substr(0, dot);
  const std::string ending = fmt::format("-{}", index);
  if (!own.ends_with(ending) || own.size() == ending.size()) {
    return make_error(Errc::kInvalidArgument,
                      "this pod's name is {} and not JOB{}, so that of pod 0 is not known; leave "
                      "`hostname` out of the manifest, or name pod 0's address with "
                      "PET_RDZV_ENDPOINT",
                      own, ending);
  }
  std::string job = own.substr(0, own.size() - ending.size());
  std::string host = fmt::format("{}-0{}", job, full_name.substr(dot));
  return FirstPod{std::move(host), std::move(job)};
}

}  // namespace ddp::schedulers
