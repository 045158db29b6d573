#include "launcher/schedulers/batch_hosts.h"

#include <set>
#include <sstream>

#include "launcher/schedulers/lsf.h"
#include "launcher/schedulers/pbs.h"
#include "launcher/schedulers/placement.h"

namespace ddp::schedulers {

std::optional<BatchHosts> find_batch_hosts(const GetEnvironment& environment) {
  if (environment("DDP_NODE_ID") != nullptr || environment("SLURM_JOB_ID") != nullptr) return {};
  if (const auto placement = read_placement(environment); !placement || *placement) return {};
  if (auto hosts = pbs_batch_hosts(environment)) return hosts;
  return lsf_batch_hosts(environment);
}

std::string hosts_once(std::string_view lines) {
  std::istringstream words{std::string(lines)};
  std::set<std::string> seen;
  std::string list;
  for (std::string host; words >> host;) {
    if (!seen.insert(host).second) continue;
    list += (list.empty() ? "" : ",") + host;
  }
  return list;
}

}  // namespace ddp::schedulers
