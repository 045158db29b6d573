#pragma once

#include <c10/core/Device.h>

// Devices for tests on machines that only have a CPU. For LibTorch they are devices of a kind of
// their own (one that it leaves to extensions): tensors on them are not CPU tensors and must be
// moved there, and autograd runs their part of a backward on one thread for each device. Their
// memory is the host's, and the CPU computes their operations, on copies. So results have the same
// bits as on the CPU, and a group of host memory can stand for one of device memory. A copy to the
// host with non_blocking is made when somebody waits for the device, so a forgotten wait shows.
//
// Not supported: other queues that run while the host does something else, and sparse tensors.
namespace ddp::test {

inline constexpr int kHostDevices = 6;

// Linking host_device.cc makes them known to the whole process. 0 <= number < kHostDevices.
c10::Device host_device(int number);

// How often this process has waited for one of them.
int host_device_waits();

}  // namespace ddp::test
