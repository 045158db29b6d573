#include "worker/checkpoint/watched_files.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "common/base/host_name.h"

namespace ddp::checkpoint {
namespace {

using Call = WatchedFiles::Call;

// So that a file that grows slowly is not one call that stands.
constexpr std::size_t kLargestWrite = std::size_t{16} << 20;

class WatchedWritableFile final : public WritableFile {
 public:
  WatchedWritableFile(WatchedFiles& watched, std::string path, std::unique_ptr<WritableFile> file)
      : watched_(watched), path_(std::move(path)), file_(std::move(file)) {}

  Result<void> sync() override {
    const Call call(watched_, "fsync", path_);
    return file_->sync();
  }
  Result<void> close() override {
    const Call call(watched_, "close", path_);
    return file_->close();
  }

 private:
  Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
    const Call call(watched_, "write", path_);
    bytes = bytes.first(std::min(bytes.size(), kLargestWrite));
    if (auto written = file_->append(bytes); !written) return written.error();
    return bytes.size();
  }

  WatchedFiles& watched_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
};

class WatchedReadableFile final : public ReadableFile {
 public:
  WatchedReadableFile(WatchedFiles& watched, std::string path, std::unique_ptr<ReadableFile> file)
      : watched_(watched), path_(std::move(path)), file_(std::move(file)) {}

  std::uint64_t size() const override { return file_->size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> into) const override {
    const Call call(watched_, "read", path_);
    return file_->read_at(offset, into);
  }

 private:
  WatchedFiles& watched_;
  std::string path_;
  std::unique_ptr<ReadableFile> file_;
};

}  // namespace

std::string StandingCall::text() const {
  return fmt::format("{} has been stuck in {} for {:.0f} s on {}", path.substr(path.rfind('/') + 1),
                     call, seconds, host_name());
}

std::optional<StandingCall> WatchedFiles::standing() const {
  const std::lock_guard lock(mutex_);
  if (!begun_) return std::nullopt;
  const double seconds = std::chrono::duration<double>(Clock::now() - begun_->when).count();
  return StandingCall{std::string(begun_->call), begun_->path, seconds};
}

WatchedFiles::Call::Call(WatchedFiles& watched, std::string_view call, const std::string& path)
    : watched_(watched) {
  const std::lock_guard lock(watched_.mutex_);
  watched_.begun_ = Begun{call, path, Clock::now()};
}

WatchedFiles::Call::~Call() {
  const std::lock_guard lock(watched_.mutex_);
  watched_.begun_.reset();
}

Result<void> WatchedFiles::make_directory(const std::string& path) {
  const Call call(*this, "mkdir", path);
  return files_.make_directory(path);
}

Result<std::unique_ptr<WritableFile>> WatchedFiles::create_file(const std::string& path) {
  const Call call(*this, "open", path);
  auto file = files_.create_file(path);
  if (!file) return file.error();
  return std::unique_ptr<WritableFile>(
      std::make_unique<WatchedWritableFile>(*this, path, std::move(*file)));
}

Result<std::unique_ptr<ReadableFile>> WatchedFiles::open_file(const std::string& path) {
  const Call call(*this, "open", path);
  auto file = files_.open_file(path);
  if (!file) return file.error();
  return std::unique_ptr<ReadableFile>(
      std::make_unique<WatchedReadableFile>(*this, path, std::move(*file)));
}

Result<std::shared_ptr<const MappedFile>> WatchedFiles::map_file(const std::string& path) {
  const Call call(*this, "mmap", path);
  return files_.map_file(path);
}

Result<std::vector<std::string>> WatchedFiles::list(const std::string& path) {
  const Call call(*this, "readdir", path);
  return files_.list(path);
}

Result<void> WatchedFiles::rename(const std::string& from, const std::string& to) {
  const Call call(*this, "rename", from);
  return files_.rename(from, to);
}

Result<void> WatchedFiles::remove_file(const std::string& path) {
  const Call call(*this, "unlink", path);
  return files_.remove_file(path);
}

Result<void> WatchedFiles::remove_directory(const std::string& path) {
  const Call call(*this, "rmdir", path);
  return files_.remove_directory(path);
}

Result<void> WatchedFiles::sync_directory(const std::string& path) {
  const Call call(*this, "fsync", path);
  return files_.sync_directory(path);
}

Result<void> WatchedFiles::make_symlink(const std::string& target, const std::string& path) {
  const Call call(*this, "symlink", path);
  return files_.make_symlink(target, path);
}

}  // namespace ddp::checkpoint
