#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/ddp_run/flags.h"

// What ddp-run has to know of the machine it is on.
namespace ddp::run {

// CPUs this process may use: its affinity mask, cut down to the quota of its control group; at
// least 1.
int usable_cores();

// CUDA devices: as many as CUDA_VISIBLE_DEVICES lists if it is set, else the device files in /dev
// (below `root`).
int cuda_devices(const GetEnvironment& environment, const std::string& root = "");
int count_visible_devices(const std::string& cuda_visible_devices);
// Their names, as CUDA_VISIBLE_DEVICES has them, in the order in which CUDA counts them.
std::vector<std::string> cuda_device_names(const GetEnvironment& environment);
std::vector<std::string> visible_devices(const std::string& cuda_visible_devices);

// Where an endpoint's host is, seen from here.
struct HostPlace {
  bool local = false;     // One of this machine's names or addresses.
  bool loopback = false;  // Written as a loopback address: only this machine can reach it.
  // Numeric address to connect to. Of this machine: one that other nodes can reach, if there is
  // one, because the coordinator takes a node's address from its connection. Else the host as it
  // was written.
  std::string address;
};

// May ask the name service. A name that does not resolve is not local.
HostPlace locate_host(const std::string& host);

// Numeric address from which this machine sends to `host`, empty if there is no way to it. May ask
// the name service.
std::string source_address(const std::string& host);

std::string host_name();

// A network interface with one of its addresses; one that has several is there several times.
struct Interface {
  std::string name;
  std::string address;  // Numeric; empty: it has none.
};
std::vector<Interface> network_interfaces();

// The facts as functions, so that a test can put others in their place; each is called only if it
// is needed.
struct Machine {
  std::string host_name;
  std::function<int()> usable_cores;
  std::function<int(std::string_view name)> accelerators;  // How many; accelerators.h.
  std::function<HostPlace(const std::string& host)> locate_host;
  std::function<std::vector<std::string>()> cuda_device_names = {};
  std::function<std::vector<Interface>()> interfaces = {};
  std::function<std::string(const std::string& host)> source_address = {};

  static Machine this_one(const GetEnvironment& environment);
};

}  // namespace ddp::run
