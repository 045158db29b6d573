#include "common/config/mpi_ranks.h"

#include <fmt/format.h>

#include "common/base/parse_number.h"

namespace ddp::config {
namespace {

constexpr int kLargest = 1 << 20;

struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Names kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kHydra = {"MPICH's launcher", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                          "MPI_LOCALNRANKS"};
constexpr Names kPmi = {"a launcher with PMI", "PMI_RANK", "PMI_SIZE", nullptr, nullptr};
constexpr Names kPmix = {"a launcher with PMIx", "PMIX_RANK", nullptr, nullptr, nullptr};

// Reads numbers and keeps the first error.
class Numbers {
 public:
  explicit Numbers(const GetEnvironment& environment) : environment_(environment) {}

  std::optional<int> read(const char* name, int lowest, int highest) {
    const char* text = name == nullptr ? nullptr : environment_(name);
    if (text == nullptr) return {};
    const auto number = parse_whole_number(text, lowest, highest);
    if (!number && !error_) {
      error_ = make_error(Errc::kInvalidArgument, "{}={}: not a number from {} to {}", name, text,
                          lowest, highest);
    }
    return number;
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  const GetEnvironment& environment_;
  std::optional<Error> error_;
};

const Names* launcher_of(const GetEnvironment& environment) {
  const auto is_set = [&](const char* name) { return environment(name) != nullptr; };
  if (is_set(kOpenMpi.rank) && is_set(kOpenMpi.size)) return &kOpenMpi;
  if (is_set(kHydra.rank) && is_set(kHydra.size) && is_set(kHydra.local_size)) return &kHydra;
  if (is_set("SLURM_STEP_ID") || is_set("FLUX_TASK_RANK")) return nullptr;
  if (is_set(kPmi.rank) && is_set(kPmi.size)) return &kPmi;
  return is_set(kPmix.rank) ? &kPmix : nullptr;
}

}  // namespace

Result<std::optional<MpiRanks>> read_mpi_ranks(const GetEnvironment& environment) {
  const Names* names = launcher_of(environment);
  if (names == nullptr) return std::optional<MpiRanks>();
  Numbers numbers(environment);
  MpiRanks ranks;
  ranks.launcher = names->launcher;
  ranks.source = fmt::format("{}={}", names->rank, environment(names->rank));
  ranks.size = numbers.read(names->size, 1, kLargest);
  ranks.rank = numbers.read(names->rank, 0, ranks.size.value_or(kLargest) - 1).value_or(0);
  ranks.local_size = numbers.read(names->local_size, 1, ranks.size.value_or(kLargest));
  ranks.local_rank = numbers.read(names->local_rank, 0, ranks.local_size.value_or(kLargest) - 1);
  if (numbers.error()) return *numbers.error();
  if (const char* job = environment("PMIX_NAMESPACE"); names == &kOpenMpi && job != nullptr)
    ranks.job = job;
  return std::optional<MpiRanks>(std::move(ranks));
}

}  // namespace ddp::config
