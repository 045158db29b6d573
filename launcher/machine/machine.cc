#include "launcher/machine/machine.h"

#include "common/base/host_name.h"
#include "launcher/machine/accelerators.h"

namespace ddp::machine {

Machine Machine::this_one(const GetEnvironment& environment) {
  return Machine{ddp::host_name(),
                 machine::usable_cores,
                 [environment](std::string_view name) {
                   return machine::count_accelerators(name, environment);
                 },
                 machine::locate_host,
                 [environment] { return machine::cuda_device_names(environment); },
                 machine::source_address,
                 machine::full_name};
}

}  // namespace ddp::machine
