#pragma once

namespace ddp {

// Exit statuses of all our programs. Each has the same meaning in every program. ddp-run exits with
// the status of the first worker that failed (128 + n for signal n). For failures of their own,
// ddp-run and ddp-train use these. They start at 64 to stay clear of what scripts use.
// launcher/ddp_run/MANUAL.md has the same table, and tests/style compares the two.
enum ExitCode : int {
  kExitSuccess = 0,
  kExitUsage = 2,          // Unknown flag, missing argument: the command line cannot be read.
  kExitInvalidValue = 64,  // A flag's value is out of its range or contradicts another flag.
  kExitDataInvalid = 65,   // A data file is missing, truncated or of the wrong kind.
  kExitPortInUse = 66,     // The rendezvous port belongs to another program.
  kExitJoinTimeout = 67,   // Not enough nodes came in time, or the endpoint did not answer.
  kExitCheckpointUnwritable =
      68,  // The checkpoint folder cannot be made or written, found out before training.
  kExitCheckpointFailed =
      69,                     // A checkpoint could not be written and --checkpoint-failure is stop.
  kExitInternal = 70,         // A fault of the program itself.
  kExitCoordinatorLost = 71,  // The rendezvous daemon went away and did not come back.
  kExitNodeLost = 72,         // A node was lost and the restart budget is used up.
  kExitCollectiveFailed = 73,  // A collective failed because of another rank; never the root cause.
  kExitRefused =
      74,  // The rendezvous refused this node: the job is over, full, or has other rules.
  kExitKeyMissing = 75,  // ddp-rendezvous get: the key is not there, or not in time.
  kExitRequeue = 76,     // The run was stopped so that SLURM starts the job again.
  kExitUnfit = 77,       // ddp-run check, --health-check or --max-node-failures found a bad node.
  kExitWorkerUnkillable = 78,  // SIGKILL did not end a worker, so this node can start no other.
  kExitNotExecutable = 126,    // The program exists but cannot be executed.
  kExitNotFound = 127,         // The program does not exist.
  kExitSignalBase = 128,       // Plus the signal's number.
};

}  // namespace ddp
