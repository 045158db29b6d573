#include "launcher/machine/machine.h"

#include <unistd.h>

#include "launcher/machine/accelerators.h"

namespace ddp::machine {

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

Machine Machine::this_one(const GetEnvironment& environment) {
  return Machine{machine::host_name(),
                 machine::usable_cores,
                 [environment](std::string_view name) {
                   return machine::count_accelerators(name, environment);
                 },
                 machine::locate_host,
                 [environment] { return machine::cuda_device_names(environment); },
                 machine::source_address};
}

}  // namespace ddp::machine
