#pragma once

#include <string>
#include <vector>

#include "launcher/check/verdict/facts.h"

// What the facts mean. Pure functions; the limits are here and nowhere else.
namespace ddp::check {

// Each limit is where jobs begin to break, not what is good.
namespace limits {
// A DataLoader with workers and NCCL need more of /dev/shm than the 64 MiB of a container.
inline constexpr std::int64_t kShmPerWorker = 128LL << 20;
// `import torch` alone takes 250 to 400 MiB.
inline constexpr std::int64_t kMemoryPerWorker = 512LL << 20;
// NCCL and UCX register their buffers with an RDMA device, which locks them.
inline constexpr std::int64_t kLockedMemoryPerWorker = 1LL << 30;
// A worker has up to four sockets for each other worker, and its libraries and data have files.
inline constexpr std::int64_t kFilesOfWorker = 512;
inline constexpr std::int64_t kFilesPerPeer = 4;
// The agent has pipes and a socket to each worker; any node may host the store of all workers.
inline constexpr std::int64_t kFilesOfNode = 256;
inline constexpr std::int64_t kFilesPerWorker = 8;
inline constexpr std::int64_t kFilesPerStoreClient = 2;
// Small models; who has a larger one sees the number in the table.
inline constexpr std::int64_t kFreeDisk = 1LL << 30;
inline constexpr std::int64_t kFreeInodes = 1'000;
// A checkpoint of 1 GB takes longer than 100 s at less.
inline constexpr double kDiskMbPerS = 10;
// The store, the lease and every save wait for small files that are forced to the disk.
inline constexpr double kSyncMs = 1'000;
// Certificates, MUNGE, Kerberos and build tools on shared files begin to fail with more.
inline constexpr double kClockMs = 1'000;
// A look-up that takes longer asks a name server that does not answer.
inline constexpr double kNameMs = 2'000;
// Several milliseconds are another city's.
inline constexpr double kLatencyMs = 10;
// Half of what Ethernet of 1 Gbit/s gives.
inline constexpr double kLinkMbPerS = 50;
// A link with less than this share of the others' bandwidth makes all wait. (Three nodes or more.)
inline constexpr double kLinkShare = 0.25;
// Another process has left something there.
inline constexpr std::int64_t kGpuUsed = 2LL << 30;
}  // namespace limits

enum class State {
  kOk,
  kWarning,  // It may be all right; nobody is refused for it.
  kFailed,
};

struct Verdict {
  int node = 0;  // Group rank.
  std::string host;
  std::string thing;  // "open files", "port", ...
  State state = State::kOk;
  std::string measured{};
  std::string limit{};   // Empty: there is none.
  std::string remedy{};  // Empty if it is all right.
};

// What can be said of a node without the others. `node` is its group rank.
std::vector<Verdict> judge_node(int node, const LocalFacts& facts);

// What can be said of all nodes, node by node; `nodes` is by group rank, and a node that has not
// answered has no host.
std::vector<Verdict> judge(const std::vector<NodeFacts>& nodes);

bool is_fit(const std::vector<Verdict>& verdicts);

// The failed ones on one line: "open files: 256 (at least 528); ...". Empty if there is none.
std::string what_failed(const std::vector<Verdict>& verdicts);

// A table for people. Below it are the remedies, or a line that says that all is well.
std::string table(const std::vector<Verdict>& verdicts);

// The same for programs: {"fit": bool, "nodes": [{"node", "host", "fit", "checks": [...]}]}.
std::string json_text(const std::vector<Verdict>& verdicts);

}  // namespace ddp::check
