#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <system_error>

#include <dirent.h>

#include "common/base/unique_fd.h"
#include "worker/checkpoint/file_system.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; glibc 2.31 does not have it yet.
#endif

namespace ddp::checkpoint {
namespace {

Error io_error(const char* what, const std::string& path, int error_number) {
  return make_error(Errc::kIo, "cannot {} {}: {}", what, path,
                    std::generic_category().message(error_number));
}

template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Result<void> sync() override {
    if (retry_interrupted([this] { return ::fsync(fd_.get()); }) < 0) {
      return io_error("write to disk", path_, errno);
    }
    return {};
  }

  Result<void> close() override {
    // After EINTR the descriptor is gone on Linux; closing again could close somebody else's.
    if (::close(fd_.release()) < 0 && errno != EINTR) return io_error("close", path_, errno);
    return {};
  }

 private:
  Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
    // The system takes at most 2 GiB at a time; smaller pieces keep a slow disk interruptible.
    const std::size_t count = std::min(bytes.size(), std::size_t{16} << 20);
    const ssize_t written =
        retry_interrupted([&] { return ::write(fd_.get(), bytes.data(), count); });
    if (written < 0) return io_error("write", path_, errno);
    if (written == 0) return io_error("write", path_, EIO);
    written_ += static_cast<std::size_t>(written);
    if (auto pushed = push_to_disk(); !pushed) return pushed.error();
    return static_cast<std::size_t>(written);
  }

  // Has the disk write while more comes, and waits for what is far behind: little is left for sync,
  // little memory is dirty, and others see by the file's size how far it is on the disk. A failure
  // is reported here or never.
  Result<void> push_to_disk() {
    for (; pushing_ && pushed_ + kWindow <= written_; pushed_ += kWindow) {
      if (auto begun = sync_range(pushed_, SYNC_FILE_RANGE_WRITE); !begun) return begun;
      if (pushed_ < kBehind) continue;
      auto waited =
          sync_range(pushed_ - kBehind, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                            SYNC_FILE_RANGE_WAIT_AFTER);
      if (!waited) return waited;
    }
    return {};
  }

  Result<void> sync_range(std::uint64_t offset, unsigned flags) {
    const int result = retry_interrupted(
        [&] { return ::sync_file_range(fd_.get(), static_cast<off64_t>(offset), kWindow, flags); });
    if (result == 0) return {};
    if (errno == EIO || errno == ENOSPC || errno == EDQUOT) {
      return io_error("write to disk", path_, errno);
    }
    pushing_ = false;  // This file system knows nothing of it.
    return {};
  }

  static constexpr std::uint64_t kWindow = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kBehind = 4 * kWindow;

  UniqueFd fd_;
  std::string path_;
  std::uint64_t written_ = 0;
  std::uint64_t pushed_ = 0;  // Told to the disk, a multiple of kWindow.
  bool pushing_ = true;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(UniqueFd fd, std::string path, std::uint64_t size)
      : fd_(std::move(fd)), path_(std::move(path)), size_(size) {}

  std::uint64_t size() const override { return size_; }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> into) const override {
    std::size_t done = 0;
    while (done < into.size()) {
      const ssize_t got = retry_interrupted([&] {
        return ::pread(fd_.get(), into.data() + done, into.size() - done,
                       static_cast<off_t>(offset + done));
      });
      if (got < 0) return io_error("read", path_, errno);
      if (got == 0) {
        return make_error(Errc::kCorrupt, "{} ends at byte {}, {} are expected", path_,
                          offset + done, offset + into.size());
      }
      done += static_cast<std::size_t>(got);
    }
    return {};
  }

 private:
  UniqueFd fd_;
  std::string path_;
  std::uint64_t size_;
};

// Not open: a mapping needs no descriptor.
class PosixMappedFile final : public MappedFile {
 public:
  PosixMappedFile(void* memory, std::size_t size, std::string path)
      : MappedFile(std::span(static_cast<const std::byte*>(memory), size)),
        path_(std::move(path)) {}
  ~PosixMappedFile() override {
    if (!bytes().empty()) ::munmap(const_cast<std::byte*>(bytes().data()), bytes().size());
  }

  Result<void> fetch(std::size_t offset, std::size_t count) const override {
    DDP_CHECK(offset <= bytes().size() && count <= bytes().size() - offset, "{} + {} of {}", offset,
              count, bytes().size());
    if (count == 0) return {};
    static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t begin = offset / page * page;
    void* const memory = const_cast<std::byte*>(bytes().data()) + begin;
    const std::size_t size = offset + count - begin;
    const int result =
        retry_interrupted([&] { return ::madvise(memory, size, MADV_POPULATE_READ); });
    if (result == 0) return {};
    // Where touching the pages would be a SIGBUS, it says EFAULT.
    if (errno != EINVAL) return io_error("read", path_, errno == EFAULT ? EIO : errno);
    return read_through(begin, size);
  }

 private:
  // For kernels before 5.14: pages that have just been read lie in memory.
  Result<void> read_through(std::size_t offset, std::size_t count) const {
    UniqueFd fd(retry_interrupted([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC); }));
    if (!fd) return io_error("open", path_, errno);
    const PosixReadableFile file(std::move(fd), path_, bytes().size());
    std::vector<std::byte> piece(std::min(count, std::size_t{1} << 20));
    for (const std::size_t end = offset + count; offset < end; offset += piece.size()) {
      auto read =
          file.read_at(offset, std::span(piece).first(std::min(piece.size(), end - offset)));
      if (!read) return read;
    }
    return {};
  }

  std::string path_;
};

class PosixFileSystem final : public FileSystem {
 public:
  Result<void> make_directory(const std::string& path) override {
    if (::mkdir(path.c_str(), 0777) == 0) return {};
    if (errno == EEXIST) return make_error(Errc::kExists, "{} exists already", path);
    return io_error("make the folder", path, errno);
  }

  Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) override {
    UniqueFd fd(retry_interrupted(
        [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }));
    if (!fd) {
      if (errno == EEXIST) return make_error(Errc::kExists, "{} exists already", path);
      return io_error("create", path, errno);
    }
    return std::unique_ptr<WritableFile>(std::make_unique<PosixWritableFile>(std::move(fd), path));
  }

  Result<std::unique_ptr<ReadableFile>> open_file(const std::string& path) override {
    std::uint64_t size = 0;
    auto fd = open_regular(path, size);
    if (!fd) return fd.error();
    return std::unique_ptr<ReadableFile>(
        std::make_unique<PosixReadableFile>(std::move(*fd), path, size));
  }

  Result<std::shared_ptr<const MappedFile>> map_file(const std::string& path) override {
    std::uint64_t size = 0;
    auto fd = open_regular(path, size);
    if (!fd) return fd.error();
    void* memory = nullptr;
    if (size > 0) {
      memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd->get(), 0);
      if (memory == MAP_FAILED) return io_error("map", path, errno);
      (void)::madvise(memory, size, MADV_SEQUENTIAL);  // Advice; nothing depends on it.
    }
    return std::shared_ptr<const MappedFile>(
        std::make_shared<PosixMappedFile>(memory, static_cast<std::size_t>(size), path));
  }

  Result<std::vector<std::string>> list(const std::string& path) override {
    DIR* folder = ::opendir(path.c_str());
    if (folder == nullptr) {
      if (errno == ENOENT) return make_error(Errc::kNotFound, "{} does not exist", path);
      return io_error("list the folder", path, errno);
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(folder)) {
      if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0) {
        names.emplace_back(entry->d_name);
      }
      errno = 0;
    }
    const int error_number = errno;
    ::closedir(folder);
    if (error_number != 0) return io_error("list the folder", path, error_number);
    return names;
  }

  Result<void> rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return {};
    return make_error(Errc::kIo, "cannot rename {} to {}: {}", from, to,
                      std::generic_category().message(errno));
  }

  Result<void> remove_file(const std::string& path) override {
    if (::unlink(path.c_str()) == 0) return {};
    if (errno == ENOENT) return make_error(Errc::kNotFound, "{} is not there", path);
    return io_error("remove", path, errno);
  }

  Result<void> remove_directory(const std::string& path) override {
    if (::rmdir(path.c_str()) == 0) return {};
    if (errno == ENOENT) return make_error(Errc::kNotFound, "{} is not there", path);
    return io_error("remove the folder", path, errno);
  }

  Result<void> sync_directory(const std::string& path) override {
    UniqueFd fd(retry_interrupted(
        [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (!fd) return io_error("open the folder", path, errno);
    if (retry_interrupted([&] { return ::fsync(fd.get()); }) < 0) {
      return io_error("write to disk the folder", path, errno);
    }
    return {};
  }

  Result<void> make_symlink(const std::string& target, const std::string& path) override {
    if (::symlink(target.c_str(), path.c_str()) == 0) return {};
    if (errno == EEXIST) return make_error(Errc::kExists, "{} exists already", path);
    return io_error("make the link", path, errno);
  }

 private:
  static Result<UniqueFd> open_regular(const std::string& path, std::uint64_t& size) {
    // O_NONBLOCK: a pipe of that name must not block, and is refused below.
    UniqueFd fd(
        retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
    if (!fd) {
      if (errno == ENOENT) return make_error(Errc::kNotFound, "{} does not exist", path);
      return io_error("open", path, errno);
    }
    struct stat status {};
    if (::fstat(fd.get(), &status) < 0) return io_error("look at", path, errno);
    if (!S_ISREG(status.st_mode)) {
      return make_error(Errc::kCorrupt, "{} is not a regular file", path);
    }
    size = static_cast<std::uint64_t>(status.st_size);
    return fd;
  }
};

}  // namespace

FileSystem& posix_file_system() {
  static PosixFileSystem files;
  return files;
}

}  // namespace ddp::checkpoint
