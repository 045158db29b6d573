#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "worker/checkpoint/save_folder.h"
#include "worker/checkpoint/save_time.h"

namespace ddp::checkpoint {

// The publisher's half of write_snapshot, once its own part is there: waits for the parts of all
// ranks, makes the manifest of the whole, publishes. Goes on where a killed one stopped.
Result<Entry> publish_save(FileSystem& files, SaveFolder& folder, const SnapshotPlan& plan,
                           SaveTime& time, std::chrono::milliseconds part_timeout,
                           std::vector<std::string>& warnings);

// After a checkpoint is published: `latest`, and old ones removed; with leaves_retired only put out
// of the way (Directory::remove_retired). Returns what could not be done.
std::vector<std::string> tidy_up(Directory& directory, const Entry& published,
                                 const Retention& retention, bool leaves_retired);

}  // namespace ddp::checkpoint
