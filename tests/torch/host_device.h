#pragma once

#include <c10/core/Device.h>

// Devices for tests on machines that have none but the CPU. To LibTorch they are devices of a kind
// of their own (one which it leaves to extensions): tensors on them are no CPU tensors, what is to
// be on one has to be moved there, and autograd runs their part of a backward on a thread for each.
// Their memory is the host's, and the CPU computes what they are asked for, on copies; so results
// have the same bits as on the CPU, and a group of host memory can stand for one of device memory.
//
// What is not there: queues that go on while the host does something else, and sparse tensors.
namespace ddp::test {

inline constexpr int kHostDevices = 6;

// Linking host_device.cc makes them known to the whole process. 0 <= number < kHostDevices.
c10::Device host_device(int number);

}  // namespace ddp::test
