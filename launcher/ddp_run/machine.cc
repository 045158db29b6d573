#include "launcher/ddp_run/machine.h"

#include <unistd.h>

#include "launcher/ddp_run/accelerators.h"

namespace ddp::run {

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

Machine Machine::this_one(const GetEnvironment& environment) {
  return Machine{
      run::host_name(),
      run::usable_cores,
      [environment](std::string_view name) { return run::count_accelerators(name, environment); },
      run::locate_host,
      [environment] { return run::cuda_device_names(environment); },
      run::network_interfaces,
      run::source_address};
}

}  // namespace ddp::run
