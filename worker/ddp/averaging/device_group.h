#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "worker/runtime/process_group.h"

namespace ddp {

// A group for the memory of one device of this process, for example a NcclGroup. It has the same
// ranks as the process group for host memory that it is used with.
struct DeviceGroup {
  c10::Device device;
  std::shared_ptr<ProcessGroup> group;
};

}  // namespace ddp
