#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "worker/checkpoint/save_folder.h"
#include "worker/checkpoint/save_time.h"

namespace ddp::checkpoint {

// The publisher's half of write_snapshot, once its own part exists: waits for the parts of all
// ranks, makes the manifest of the whole save and publishes it. Continues where a killed publisher
// stopped.
Result<Entry> publish_save(FileSystem& files, SaveFolder& folder, const SnapshotPlan& plan,
                           SaveTime& time, const WriterOptions& options,
                           std::vector<std::string>& warnings);

// After a checkpoint is published: updates `latest` and removes old checkpoints, or only renames
// them if leaves_retired is set (Directory::remove_retired). Returns what could not be done.
std::vector<std::string> tidy_up(Directory& directory, const Entry& published,
                                 const Retention& retention, bool leaves_retired);

}  // namespace ddp::checkpoint
