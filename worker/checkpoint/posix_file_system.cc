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
#include "worker/checkpoint/posix_calls.h"
#include "worker/checkpoint/posix_writable_file.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; glibc 2.31 does not have it yet.
#endif

namespace ddp::checkpoint {
namespace {

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
        return make_error(Errc::kCorrupt, "{} ends at byte {}, but {} are expected", path_,
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

// Keeps no descriptor: a mapping does not need one.
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
    // It fails with EFAULT if touching the pages would raise SIGBUS.
    if (errno != EINVAL) return io_error("read", path_, errno == EFAULT ? EIO : errno);
    return read_through(begin, size);
  }

 private:
  // For kernels before 5.14: pages that have just been read are in memory.
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
    if (errno == EEXIST) return make_error(Errc::kExists, "{} already exists", path);
    return io_error("make the folder", path, errno);
  }

  Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) override {
    UniqueFd fd(retry_interrupted(
        [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }));
    if (!fd) {
      if (errno == EEXIST) return make_error(Errc::kExists, "{} already exists", path);
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
    if (errno == ENOENT) return make_error(Errc::kNotFound, "{} does not exist", path);
    if (errno == EISDIR) return make_error(Errc::kInvalidArgument, "{} is a folder", path);
    return io_error("remove", path, errno);
  }

  Result<void> remove_directory(const std::string& path) override {
    if (::rmdir(path.c_str()) == 0) return {};
    if (errno == ENOENT) return make_error(Errc::kNotFound, "{} does not exist", path);
    return io_error("remove the folder", path, errno);
  }

  Result<void> sync_directory(const std::string& path) override {
    UniqueFd fd(retry_interrupted(
        [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (!fd) return io_error("open the folder", path, errno);
    if (retry_interrupted([&] { return ::fsync(fd.get()); }) < 0) {
      return io_error("sync to disk the folder", path, errno);
    }
    return {};
  }

  Result<void> make_symlink(const std::string& target, const std::string& path) override {
    if (::symlink(target.c_str(), path.c_str()) == 0) return {};
    if (errno == EEXIST) return make_error(Errc::kExists, "{} already exists", path);
    return io_error("make the link", path, errno);
  }

 private:
  static Result<UniqueFd> open_regular(const std::string& path, std::uint64_t& size) {
    // O_NONBLOCK: a pipe must not block; it is refused below.
    UniqueFd fd(
        retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
    if (!fd) {
      if (errno == ENOENT) return make_error(Errc::kNotFound, "{} does not exist", path);
      return io_error("open", path, errno);
    }
    struct stat status {};
    if (::fstat(fd.get(), &status) < 0) return io_error("inspect", path, errno);
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
