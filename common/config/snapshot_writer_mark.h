#pragma once

namespace ddp::config {

// In the environment of every process that an agent has started to write a checkpoint. It goes on
// when that agent is lost; ddp-run knows it by this.
inline constexpr const char* kSnapshotWriterMark = "DDP_SNAPSHOT_WRITER=1";

}  // namespace ddp::config
