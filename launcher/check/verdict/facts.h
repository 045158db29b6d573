#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

// What the probes have measured, before anybody judges it. Nodes send each other these as JSON.
namespace ddp::check {

// A checkpoint folder and the disk below it.
struct FolderFacts {
  std::string path;
  std::string error;  // Why it cannot be looked at or written; empty: it can.
  std::int64_t free_bytes = 0;
  std::int64_t free_inodes = -1;  // -1: the file system has no fixed number.
  double mb_per_s = 0;            // Of a file that was written and then forced to the disk.
  double sync_ms = 0;             // The longest time that one fsync took.
};

struct GpuFacts {
  int index = 0;
  std::string name;
  std::string error;                    // Why NVML cannot say more; empty: it can.
  std::int64_t uncorrected_errors = 0;  // Since the driver was loaded.
  bool remapping_failed = false;        // A bad row of its memory could not be replaced.
  bool remapping_pending = false;       // Until the GPU is reset.
  std::int64_t used_bytes = 0;          // By whomever.
  std::int64_t total_bytes = 0;
};

// One node, without the network.
struct LocalFacts {
  std::string host;
  int workers = 1;     // That the job starts on this node.
  int world_size = 1;  // Workers on all nodes.
  int nodes = 1;

  std::string shm_error;  // Of /dev/shm; empty: it is there.
  std::int64_t shm_free = 0;
  std::int64_t memory = 0;    // That the workers can have.
  std::string memory_source;  // What limits it: "memory.max of /sys/fs/cgroup/job", "this machine".
  std::string memfd_error;    // Why the workers' shared memory cannot be made; empty: it can.
  std::int64_t locked_memory = -1;  // RLIMIT_MEMLOCK; -1: no limit.
  bool has_rdma = false;            // There are devices that need locked memory.
  std::int64_t soft_files = 0;      // RLIMIT_NOFILE, as workers get it; -1: no limit.
  std::int64_t hard_files = 0;

  std::string name_error;  // Why its own name has no address; empty: it has.
  std::vector<std::string> name_addresses;
  double name_ms = 0;

  std::optional<FolderFacts> folder;  // Nothing: none was named.
  int gpu_files = 0;                  // /dev/nvidia0, ...
  std::string nvml_error;  // Why NVML cannot be asked; empty: it can, or there is no GPU.
  std::vector<GpuFacts> gpus;
};

// What one node has seen of another one.
struct PeerFacts {
  int node = 0;            // The other one's group rank.
  std::string address;     // Where it says that it is reached, with the port.
  std::string error;       // Why it is not reached there; empty: it is.
  std::string name_error;  // Why its name has no address here; empty: it has.
  std::vector<std::string> name_addresses;
  std::string reverse_name;   // What its address is called here; empty: it has no name.
  double name_ms = 0;         // For both.
  bool has_clock = false;     // The next two are known.
  double clock_ms = 0;        // How far its clock is ahead of this node's.
  double clock_error_ms = 0;  // That is right to this.
  bool is_neighbour = false;  // The next two were tried.
  double latency_ms = 0;      // The shortest round trip; 0: not known.
  double mb_per_s = 0;        // To it; 0: not known.
};

struct NodeFacts {
  int node = 0;  // Its group rank.
  LocalFacts local;
  std::vector<PeerFacts> peers;
};

std::string encode(const NodeFacts& facts);
// kProtocol for other bytes.
Result<NodeFacts> decode_node_facts(std::string_view text);
std::string encode(const FolderFacts& facts);
Result<FolderFacts> decode_folder_facts(std::string_view text);

}  // namespace ddp::check
