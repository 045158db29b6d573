#include "launcher/plan/node_plan.h"

#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/base/exit_error.h"
#include "common/log/log.h"
#include "launcher/flags/flag_values.h"
#include "launcher/machine/accelerators.h"

namespace ddp::plan {
namespace {

// The devices of --devices, by their names in CUDA_VISIBLE_DEVICES.
Result<std::vector<std::string>> choose_devices(const flags::Options& options,
                                                const machine::Machine& machine) {
  std::vector<std::string> chosen;
  if (options.devices.empty()) return chosen;
  const std::vector<std::string> seen = machine.cuda_device_names();
  if (seen.empty()) {
    return exit_error(kExitInvalidValue,
                      "{}: this machine has no CUDA device that may be used (/dev/nvidia*, "
                      "CUDA_VISIBLE_DEVICES); leave the flag out",
                      options.devices_flag);
  }
  for (const std::string& device : options.devices) {
    const auto number = flags::parse_integer(device, 0, std::numeric_limits<int>::max());
    if (number && static_cast<std::size_t>(*number) >= seen.size()) {
      return exit_error(kExitInvalidValue, "{}: there is no device {}; this process sees only {}",
                        options.devices_flag, device,
                        seen.size() == 1 ? "number 0" : fmt::format("0 to {}", seen.size() - 1));
    }
    chosen.push_back(number ? seen[static_cast<std::size_t>(*number)] : device);
  }
  return chosen;
}

// With --virtual-local-rank each worker needs a device of its own.
Result<void> plan_devices(const flags::Options& options, const machine::Machine& machine,
                          config::JobSpec& spec) {
  auto devices = choose_devices(options, machine);
  if (!devices) return devices.error();
  spec.devices = std::move(*devices);
  if (!spec.virtual_local_rank) return {};
  if (spec.devices.empty()) spec.devices = machine.cuda_device_names();
  if (spec.devices.empty() || static_cast<std::size_t>(spec.nproc) <= spec.devices.size())
    return {};
  return exit_error(kExitInvalidValue,
                    "--virtual-local-rank: {} workers need a device each, but there are {}; lower "
                    "--nproc-per-node, or leave one of the two flags out",
                    spec.nproc, spec.devices.size());
}

Result<int> count_workers(const flags::Options& options, const machine::Machine& machine) {
  using Kind = flags::ProcessCount::Kind;
  const flags::ProcessCount& count = options.nproc;
  if (count.kind == Kind::kNumber) return count.number;
  if (count.kind == Kind::kCpu) return machine.usable_cores();
  if (!options.devices.empty()) return static_cast<int>(options.devices.size());
  const bool one_kind = count.kind == Kind::kAccelerator;
  const int devices = machine.accelerators(one_kind ? count.accelerator : machine::kAnyAccelerator);
  if (devices > 0) return devices;
  if (count.kind == Kind::kDevices) return 1;
  if (!one_kind) return machine.usable_cores();
  const machine::Accelerator& kind = *machine::find_accelerator(count.accelerator);
  return exit_error(kExitInvalidValue,
                    "--nproc-per-node {}: this machine has no {} that may be used ({}); write a "
                    "number, cpu or auto",
                    kind.name, kind.device, kind.places);
}

}  // namespace

Result<void> plan_node(const flags::Options& options, const machine::Machine& machine,
                       config::JobSpec& spec) {
  auto nproc = count_workers(options, machine);
  if (!nproc) return nproc.error();
  spec.nproc = *nproc;
  log::info("this node has {} workers", spec.nproc);
  spec.usable_cores = machine.usable_cores();
  return plan_devices(options, machine, spec);
}

}  // namespace ddp::plan
