#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/checkpoint/watched_files.h"

namespace ddp::checkpoint {

struct WriterOptions {
  // The publisher gives up when parts are missing and no other writer has shown a sign of life for
  // this long: a change in the folder. A writer that says nothing may be gone with its node.
  std::chrono::milliseconds part_timeout = std::chrono::seconds(10);
  // Whether the round in which the save began still lasts. As long as it does, every node is there,
  // and a silent writer waits for its disk: the publisher waits for SnapshotPlan::timeout. Empty:
  // it is over. Any thread.
  std::function<bool()> round_lasts = {};
  // Ranks whose nodes are lost: the publisher gives up at once when a part of theirs is missing.
  // May be empty.
  std::function<std::set<Rank>()> lost_ranks = {};
  // Called from a thread of its own about once a second while one system call does not return.
  // If it is not empty, the writer also says in the folder that it lives. Empty for file systems
  // that must be used by one thread.
  std::function<void(const StandingCall&)> on_standing = {};
  // Called often. Once it returns true, the save fails with kAborted and is cleaned up. May be
  // empty.
  std::function<bool()> cancelled;
  // Called by the publisher just before the checkpoint becomes visible. May be empty.
  std::function<void()> before_visible = {};
  // Only rename old checkpoints. The caller removes them (Directory::remove_retired) after it has
  // reported the result, because freeing a large file takes a while.
  bool leaves_retired = false;
  // The clock, for tests; empty: the real one.
  std::function<TimePoint()> now;
  std::function<void(std::chrono::nanoseconds)> sleep;
};

struct Written {
  std::string path;                   // The checkpoint's path, for the publisher; else empty.
  std::uint64_t bytes = 0;            // Of this rank's files.
  double seconds = 0;                 // From the beginning of this call.
  std::vector<std::string> warnings;  // What could not be done although the save succeeded.
};

// Writes one rank's share of a save into the save's temporary folder and makes it durable. The
// publisher then waits for the parts of all other ranks, publishes the checkpoint, points `latest`
// at it and removes old ones. Ranks meet in the folder only; FORMAT.md has the protocol.
//
// It may be killed at any point and called again with the same snapshot, even after it succeeded,
// and in another process. Never run two calls for one rank's share at the same time. The
// publisher's caller must hold the DirectoryLock.
//
// Failures leave existing checkpoints untouched. What was written of this one is removed, as far as
// possible, and the publisher is told. kTimeout: parts of other ranks are missing; kAborted:
// cancelled, or another rank failed, or the publisher gave up (the message says which); any other
// code: this rank's own failure. Blocks; any thread.
Result<Written> write_snapshot(FileSystem& files, const Snapshot& snapshot,
                               const WriterOptions& options = {});

}  // namespace ddp::checkpoint
