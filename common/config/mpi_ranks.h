#pragma once

#include <optional>
#include <string>

#include "common/base/environment.h"
#include "common/base/result.h"

namespace ddp::config {

// What mpirun tells each process that it starts, whether or not that uses MPI. Pure.
//
// Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE and _LOCAL_RANK ("Environment variables set
// for MPI applications"), and PMIX_NAMESPACE, the job's name (the PMIx standard,
// PMIx_server_setup_fork). MPICH and Intel MPI, whose launcher is Hydra: PMI_RANK and PMI_SIZE (RFC
// 13 of Flux describes PMI-1), MPI_LOCALNRANKS and MPI_LOCALRANKID. Others that speak PMI, such as
// PALS: PMI_RANK and PMI_SIZE alone. Launchers of PMIx that are not Open MPI's: PMIX_RANK; the size
// is not there.
struct MpiRanks {
  std::string launcher;  // For people: "Open MPI".
  std::string source;    // The variable that gives the rank, as it is: "PMI_RANK=2".
  int rank = 0;
  std::optional<int> size;        // Nothing: not known.
  std::optional<int> local_size;  // Ranks on this machine. Nothing: not known.
  std::optional<int> local_rank;
  std::string job;  // A name of the job; all ranks have the same. Empty: not known.

  // Whether all ranks are known to be on this machine.
  bool on_one_machine() const { return size && local_size == size; }

  friend bool operator==(const MpiRanks&, const MpiRanks&) = default;
};

// Nothing if no launcher of MPI has started this process, or if srun or Flux has: they set the
// variables of PMI, too, but their own say more. kInvalidArgument names the variable that is wrong.
Result<std::optional<MpiRanks>> read_mpi_ranks(const GetEnvironment& environment);

}  // namespace ddp::config
