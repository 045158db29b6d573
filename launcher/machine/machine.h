#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/environment.h"

// Facts about this machine.
namespace ddp::machine {

// The number of CPUs that this process may use: those of its affinity mask, limited by the quota of
// its control group; at least 1.
int usable_cores();

// The number of CUDA devices: those in CUDA_VISIBLE_DEVICES if it is set, otherwise the device
// files in /dev (below `root`).
int cuda_devices(const GetEnvironment& environment, const std::string& root = "");
int count_visible_devices(const std::string& cuda_visible_devices);
// The devices' names, as in CUDA_VISIBLE_DEVICES, in CUDA's order.
std::vector<std::string> cuda_device_names(const GetEnvironment& environment);
std::vector<std::string> visible_devices(const std::string& cuda_visible_devices);

// Where an endpoint's host is, seen from here.
struct HostPlace {
  bool local = false;     // It is one of this machine's names or addresses.
  bool loopback = false;  // It is written as a loopback address, which only this machine reaches.
  // The address to connect to. If the host is this machine: a numeric address that other nodes can
  // reach, if there is one, because the coordinator takes a node's address from its connection.
  // Otherwise the host as written.
  std::string address;
};

// May ask the name service. A name that does not resolve is not local.
HostPlace locate_host(const std::string& host);

// Whether `host` names the machine whose name is `own`, with or without its domain: if one of the
// two has no dot, only the parts before the first dot are compared. Asks nobody.
bool is_own_name(const std::string& host, const std::string& own);

// The numeric address from which this machine sends to `host`; empty if there is no route. May ask
// the name service.
std::string source_address(const std::string& host);

// This machine's name with its domain, as `hostname -f` says it: in a pod, that of /etc/hosts. Only
// the host name if there is none. May ask the name service.
std::string full_name();

// The facts as functions, so that tests can replace them. Each is called only if it is needed.
struct Machine {
  std::string host_name;
  std::function<int()> usable_cores;
  std::function<int(std::string_view name)> accelerators;  // Their number; see accelerators.h.
  std::function<HostPlace(const std::string& host)> locate_host;
  std::function<std::vector<std::string>()> cuda_device_names = {};
  std::function<std::string(const std::string& host)> source_address = {};
  std::function<std::string()> full_name = {};

  static Machine this_one(const GetEnvironment& environment);
};

}  // namespace ddp::machine
