#pragma once

namespace ddp::config {

// In the environment of every process that an agent starts to write a checkpoint. Such a process
// goes on if its agent is lost; ddp-run recognizes it by this mark.
inline constexpr const char* kSnapshotWriterMark = "DDP_SNAPSHOT_WRITER=1";

}  // namespace ddp::config
