#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace ddp::checkpoint {

// A new file being written. The destructor closes it; what was not synced may be lost.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  // Appends all bytes, however few the system takes at a time.
  Result<void> append(std::span<const std::byte> bytes);
  Result<void> append(std::string_view text);

  // The contents are on the disk when it returns success. After a failure their state is unknown:
  // discard the file.
  virtual Result<void> sync() = 0;
  // Also reports errors that the system finds late (NFS). The file is closed either way.
  virtual Result<void> close() = 0;

 private:
  // Writes at least one of the bytes (there is at least one) and returns how many.
  virtual Result<std::size_t> write_some(std::span<const std::byte> bytes) = 0;
};

// A file being read. The destructor closes it.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual std::uint64_t size() const = 0;
  // Fills the span with the bytes from `offset`; kCorrupt if the file ends too early.
  virtual Result<void> read_at(std::uint64_t offset, std::span<std::byte> into) const = 0;
};

// A whole file, mapped into memory until destruction. The file must not become shorter meanwhile,
// but it may be removed. Any thread.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

  // Brings a part of it into memory, so that touching it needs no disk. Data that the disk cannot
  // read is a kIo with the path here; without fetch it would be a SIGBUS. The part must lie within
  // bytes().
  virtual Result<void> fetch(std::size_t offset, std::size_t count) const = 0;

 protected:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

 private:
  std::span<const std::byte> bytes_;
};

// Every effect that a checkpoint has on the disk, one virtual call each, so that a test can make
// any of them fail, cut it short or lose it. A failure is kIo with the path and the system's
// reason, unless another code is named. Any thread.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // kExists if something has that name.
  virtual Result<void> make_directory(const std::string& path) = 0;
  // kExists if something has that name.
  virtual Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) = 0;
  // kNotFound if there is none.
  virtual Result<std::unique_ptr<ReadableFile>> open_file(const std::string& path) = 0;
  // kNotFound if there is none.
  virtual Result<std::shared_ptr<const MappedFile>> map_file(const std::string& path) = 0;
  // Names in a folder, or in the one that a link points to, without "." and "..", unordered.
  // kNotFound if it does not exist.
  virtual Result<std::vector<std::string>> list(const std::string& path) = 0;
  // Atomic. A file or link at `to` is replaced; a folder there must be empty.
  virtual Result<void> rename(const std::string& from, const std::string& to) = 0;
  // A file, or a link itself. kNotFound if there is none, kInvalidArgument if it is a folder.
  virtual Result<void> remove_file(const std::string& path) = 0;
  // An empty folder.
  virtual Result<void> remove_directory(const std::string& path) = 0;
  // When it returns success, the names in the folder are on the disk.
  virtual Result<void> sync_directory(const std::string& path) = 0;
  virtual Result<void> make_symlink(const std::string& target, const std::string& path) = 0;
};

// The real one, without state of its own.
FileSystem& posix_file_system();

// --- Built on the above. ---

// Reads a small file as a whole; kCorrupt if it is larger than `limit`.
Result<std::string> read_text(FileSystem& files, const std::string& path, std::uint64_t limit);

// Creates, writes, syncs and closes.
Result<void> write_durably(FileSystem& files, const std::string& path, std::string_view text);

// Makes the folder and its missing parents, each durable in its parent. Succeeds if it already
// exists.
Result<void> make_directories(FileSystem& files, const std::string& path);

// Removes a folder and the files in it. Goes on after a failure and returns the first one. Not for
// a link: it would remove what is in the folder that the link points to.
Result<void> remove_tree(FileSystem& files, const std::string& path);

std::string join_path(std::string_view directory, std::string_view name);
// "." for a name without a folder.
std::string parent_path(std::string_view path);

}  // namespace ddp::checkpoint
