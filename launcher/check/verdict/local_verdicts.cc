// What can be said of a node without the others.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/host_port.h"
#include "common/base/size_text.h"
#include "launcher/check/verdict/verdict.h"

namespace ddp::check {
namespace {

// Adds verdicts of one node.
class Judge {
 public:
  Judge(int node, const LocalFacts& facts) : node_(node), facts_(facts) {}

  void add(std::string thing, State state, std::string measured, std::string limit,
           const std::string& remedy) {
    verdicts_.push_back({.node = node_,
                         .host = facts_.host,
                         .thing = std::move(thing),
                         .state = state,
                         .measured = std::move(measured),
                         .limit = std::move(limit),
                         .remedy = state == State::kOk ? "" : remedy});
  }
  void need(std::string thing, bool is_ok, std::string measured, std::string limit,
            const std::string& remedy) {
    add(std::move(thing), is_ok ? State::kOk : State::kFailed, std::move(measured),
        std::move(limit), remedy);
  }

  void memory();
  void files();
  void name();
  void folder();
  void gpus();

  std::vector<Verdict> take() { return std::move(verdicts_); }

 private:
  void gpu(const GpuFacts& gpu);

  int node_;
  const LocalFacts& facts_;
  std::vector<Verdict> verdicts_;
};

std::string at_least(const std::string& text) { return "at least " + text; }

std::string limit_text(std::int64_t limit) {
  return limit < 0 ? "unlimited" : fmt::format("{}", limit);
}

bool reaches(std::int64_t limit, std::int64_t needed) { return limit < 0 || limit >= needed; }

void Judge::memory() {
  const std::int64_t shm = limits::kShmPerWorker * facts_.workers;
  need("/dev/shm", facts_.shm_error.empty() && facts_.shm_free >= shm,
       facts_.shm_error.empty() ? size_text(facts_.shm_free) + " free" : facts_.shm_error,
       at_least(size_text(shm)),
       "docker run --shm-size=8g or --ipc=host; elsewhere mount -o remount,size=8g /dev/shm, or "
       "remove what old jobs have left there");
  const std::int64_t memory = limits::kMemoryPerWorker * facts_.workers;
  need("memory", facts_.memory >= memory,
       fmt::format("{} ({})", size_text(facts_.memory), facts_.memory_source),
       at_least(size_text(memory)),
       "ask for more (sbatch --mem, docker run --memory), start fewer workers, or end what uses "
       "it");
  need("shared memory", facts_.memfd_error.empty(),
       facts_.memfd_error.empty() ? "can be made" : facts_.memfd_error, "",
       "raise what ulimit -f and ulimit -v show to unlimited");
  const std::int64_t locked = limits::kLockedMemoryPerWorker * facts_.workers;
  need("locked memory", !facts_.has_rdma || reaches(facts_.locked_memory, locked),
       (facts_.locked_memory < 0 ? "unlimited" : size_text(facts_.locked_memory)) +
           (facts_.has_rdma ? "" : ", no RDMA device"),
       facts_.has_rdma ? at_least(size_text(locked)) : "",
       "ulimit -l unlimited: LimitMEMLOCK=infinity of the service, PropagateResourceLimits of "
       "SLURM, docker run --ulimit memlock=-1");
}

void Judge::files() {
  const std::string remedy =
      "ulimit -n 65536: LimitNOFILE of the service, /etc/security/limits.conf, docker run --ulimit "
      "nofile=65536";
  const std::int64_t soft =
      limits::kFilesOfWorker + limits::kFilesPerPeer * std::int64_t{facts_.world_size};
  const std::int64_t hard = limits::kFilesOfNode + limits::kFilesPerWorker * facts_.workers +
                            limits::kFilesPerStoreClient * std::int64_t{facts_.world_size};
  need("open files", reaches(facts_.soft_files, soft), limit_text(facts_.soft_files),
       at_least(fmt::format("{}", soft)), remedy);
  need("open files (hard)", reaches(facts_.hard_files, hard), limit_text(facts_.hard_files),
       at_least(fmt::format("{}", hard)), remedy);
}

void Judge::name() {
  const auto& addresses = facts_.name_addresses;
  bool only_loopback = true;
  for (const std::string& address : addresses)
    only_loopback = only_loopback && is_loopback(address);
  const bool needs_address = facts_.nodes > 1;
  const bool is_ok = !needs_address || (facts_.name_error.empty() && !only_loopback &&
                                        facts_.name_ms <= limits::kNameMs);
  // Only programs that begin with the name break, so nobody is refused for it.
  add("own name", is_ok ? State::kOk : State::kWarning,
      facts_.name_error.empty()
          ? fmt::format("{} in {:.0f} ms", fmt::join(addresses, ", "), facts_.name_ms)
          : facts_.name_error,
      needs_address
          ? fmt::format("an address of the network, within {:.0f} s", limits::kNameMs / 1'000)
          : "",
      fmt::format("give {} its network address in /etc/hosts or DNS (Debian writes 127.0.1.1); "
                  "gloo starts from there",
                  facts_.host));
}

void Judge::folder() {
  if (!facts_.folder) return;
  const FolderFacts& folder = *facts_.folder;
  if (!folder.error.empty()) {
    return need("checkpoint folder", false, fmt::format("{}: {}", folder.path, folder.error), "",
                "make it, give this user the right to write there, make room on its disk, or "
                "mend its server; --check-dir names another");
  }
  need("free disk", folder.free_bytes >= limits::kFreeDisk,
       fmt::format("{} at {}", size_text(folder.free_bytes), folder.path),
       at_least(size_text(limits::kFreeDisk)), "remove old checkpoints, or use another disk");
  if (folder.free_inodes >= 0) {
    need("free inodes", folder.free_inodes >= limits::kFreeInodes,
         fmt::format("{}", folder.free_inodes), at_least(fmt::format("{}", limits::kFreeInodes)),
         "remove small files from that file system");
  }
  const std::string slow =
      "look at what else writes there (iostat -x), at the disk's health (smartctl -a) and at the "
      "server of a network file system";
  need("write speed", folder.mb_per_s >= limits::kDiskMbPerS,
       fmt::format("{:.0f} MB/s", folder.mb_per_s),
       at_least(fmt::format("{:.0f} MB/s", limits::kDiskMbPerS)), slow);
  need("fsync", folder.sync_ms <= limits::kSyncMs, fmt::format("{:.1f} ms", folder.sync_ms),
       fmt::format("at most {:.0f} ms", limits::kSyncMs), slow);
}

void Judge::gpu(const GpuFacts& gpu) {
  const std::string thing = fmt::format("GPU {}", gpu.index);
  if (!gpu.error.empty()) {
    return need(thing, false, gpu.error, "",
                "look into dmesg for NVRM: Xid; a GPU that is lost needs a reset (nvidia-smi -r) "
                "or a restart of the machine");
  }
  if (gpu.remapping_failed || gpu.uncorrected_errors > 0) {
    return need(
        thing, false,
        gpu.remapping_failed
            ? fmt::format("{}: a bad row of its memory could not be replaced", gpu.name)
            : fmt::format("{}: {} uncorrected memory errors", gpu.name, gpu.uncorrected_errors),
        "0 errors",
        gpu.remapping_failed ? "replace the GPU"
                             : "reset it (nvidia-smi -r); replace it if they come back");
  }
  if (gpu.remapping_pending) {
    return need(thing, false, fmt::format("{}: a row of its memory waits to be replaced", gpu.name),
                "", "reset it (nvidia-smi -r)");
  }
  const bool is_free = gpu.used_bytes <= limits::kGpuUsed;
  add(thing, is_free ? State::kOk : State::kWarning,
      fmt::format("{}, {} of {} in use", gpu.name, size_text(gpu.used_bytes),
                  size_text(gpu.total_bytes)),
      "at most " + size_text(limits::kGpuUsed) + " in use",
      "another process uses it (nvidia-smi shows which)");
}

void Judge::gpus() {
  if (!facts_.nvml_error.empty()) {
    add("GPUs", State::kWarning,
        fmt::format("{} device files, but NVML cannot be asked: {}", facts_.gpu_files,
                    facts_.nvml_error),
        "", "install the library of the driver (libnvidia-ml.so.1), or reload the driver");
    return;
  }
  for (const GpuFacts& one : facts_.gpus) gpu(one);
  const int found = static_cast<int>(facts_.gpus.size());
  if (facts_.gpu_files == 0 && found == 0) return;
  need("GPUs", found >= facts_.gpu_files, fmt::format("{}", found),
       at_least(fmt::format("{} (device files)", facts_.gpu_files)),
       "a GPU has fallen off the bus: look into dmesg for NVRM: Xid, and restart the machine");
}

}  // namespace

std::vector<Verdict> judge_node(int node, const LocalFacts& facts) {
  Judge judge(node, facts);
  judge.memory();
  judge.files();
  judge.name();
  judge.folder();
  judge.gpus();
  return judge.take();
}

}  // namespace ddp::check
