#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "worker/checkpoint/file_system.h"

namespace ddp::checkpoint {

// A system call of a writer that has not returned yet.
struct StandingCall {
  std::string call;  // "fsync", "write", "rename", ...
  std::string path;
  double seconds = 0;  // How long it has stood.

  // "shard-00001.safetensors has been stuck in fsync for 12 s on node2".
  std::string text() const;
};

// Passes every effect on to another file system, and knows which call has not returned: a disk may
// stall for a minute, and a network file system for ever. One thread uses the files; any thread may
// ask standing().
class WatchedFiles final : public FileSystem {
 public:
  // `files` outlives the object, and the object the files that it makes.
  explicit WatchedFiles(FileSystem& files) : files_(files) {}

  std::optional<StandingCall> standing() const;

  // While it exists, the call counts as standing.
  class Call {
   public:
    Call(WatchedFiles& watched, std::string_view call, const std::string& path);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    WatchedFiles& watched_;
  };

  Result<void> make_directory(const std::string& path) override;
  Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) override;
  Result<std::unique_ptr<ReadableFile>> open_file(const std::string& path) override;
  Result<std::shared_ptr<const MappedFile>> map_file(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& path) override;
  Result<void> rename(const std::string& from, const std::string& to) override;
  Result<void> remove_file(const std::string& path) override;
  Result<void> remove_directory(const std::string& path) override;
  Result<void> sync_directory(const std::string& path) override;
  Result<void> make_symlink(const std::string& target, const std::string& path) override;

 private:
  struct Begun {
    std::string_view call;  // A literal.
    std::string path;
    TimePoint when;
  };

  FileSystem& files_;
  mutable std::mutex mutex_;
  std::optional<Begun> begun_;
};

}  // namespace ddp::checkpoint
