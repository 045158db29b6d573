#include "common/store/file_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "common/base/key_map.h"
#include "common/base/unique_fd.h"
#include "common/store/store_errors.h"
#include "common/wait/deadline.h"
#include "common/wait/wait_interrupt.h"
#include "common/wire/c10d.h"

namespace ddp::store {
namespace {

constexpr std::string_view kMagic = "ddpstore";
// A record: its kind, key, value; strings as on the wire.
constexpr char kSetRecord = 'S';
constexpr char kDeleteRecord = 'D';  // No value.
// Changes by other machines send no notifications, so a wait looks again this often.
constexpr Duration kLookAgain{50};
// A wait asks for notifications only after looking at these growing intervals. To close their
// descriptor takes the kernel 10 ms and more, so a short wait does better without.
constexpr std::chrono::microseconds kFirstInterval{100};
constexpr std::chrono::microseconds kLastInterval{12'800};

class FileLock {
 public:
  FileLock(int fd, int kind) : fd_(fd) {
    int result = 0;
    do {
      result = ::flock(fd_, kind);
    } while (result != 0 && errno == EINTR);
    error_ = result == 0 ? 0 : errno;
  }
  ~FileLock() { ::flock(fd_, LOCK_UN); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  int error() const { return error_; }

 private:
  int fd_;
  int error_ = 0;
};

class FileStore final : public Store {
 public:
  FileStore(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Timeout timeout) override;
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Timeout timeout) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override;
  Result<bool> check(const std::vector<std::string>& keys) override;
  Result<void> wait(const std::vector<std::string>& keys, Timeout timeout) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override;
  Result<bool> delete_key(std::string_view key) override;
  Result<std::int64_t> num_keys() override;
  Result<std::vector<std::string>> list_keys() override;

 private:
  // Runs `change` on the newest state, with the lock held. `change` returns the records to append.
  template <typename Change>
  Result<void> update(Change change);
  // Brings the map up to date. Call with the lock held.
  Result<void> replay();
  Result<void> read_new_bytes(std::string& out);
  std::size_t apply_records(std::string_view bytes);
  Result<void> refresh();
  Result<void> write_record(char kind, std::string_view key, std::string_view value);
  void apply_record(char kind, std::string_view key, std::string_view value);
  // Brings the map up to date until ready() holds or the deadline passes. Returns the last ready().
  template <typename Ready>
  Result<bool> wait_for(TimePoint deadline, Ready ready);
  // A name for the file that stays valid while this object has it open, even if it was removed.
  std::string own_path() const { return fmt::format("/proc/self/fd/{}", fd_.get()); }
  std::string name() const { return fmt::format("store file '{}'", path_); }
  Error io_error(const char* what, int error_number) const;

  UniqueFd fd_;
  std::string path_;
  KeyMap map_;
  off_t end_ = 0;      // The end of the last whole record that the map has.
  bool torn_ = false;  // After end_ there is the beginning of a record whose writer was killed.
};

Error FileStore::io_error(const char* what, int error_number) const {
  return make_error(Errc::kIo, "cannot {} store file '{}': {}", what, path_,
                    std::generic_category().message(error_number));
}

Result<void> FileStore::read_new_bytes(std::string& out) {
  std::array<char, 64u << 10> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  off_t at = end_;
  while (true) {
    const ssize_t count = ::pread(fd_.get(), buffer.data(), buffer.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error("read", errno);
    if (count == 0) return {};
    out.append(buffer.data(), static_cast<std::size_t>(count));
    at += count;
  }
}

// Returns how many bytes the whole records take.
std::size_t FileStore::apply_records(std::string_view bytes) {
  std::size_t done = 0;
  const auto take_string = [&](std::size_t& at, std::string_view& out) {
    if (bytes.size() - at < 8) return false;
    const auto size = static_cast<std::uint64_t>(wire::c10d::get_i64(bytes.data() + at));
    if (size > bytes.size() - at - 8) return false;
    out = bytes.substr(at + 8, size);
    at += 8 + size;
    return true;
  };
  while (done < bytes.size()) {
    std::size_t at = done + 1;
    std::string_view key, value;
    if (!take_string(at, key) || !take_string(at, value)) break;
    apply_record(bytes[done], key, value);
    done = at;
  }
  return done;
}

void FileStore::apply_record(char kind, std::string_view key, std::string_view value) {
  if (kind == kSetRecord) {
    map_.put(key, value);
  } else {
    map_.erase(key);
  }
}

Result<void> FileStore::replay() {
  std::string bytes;
  Result<void> read = read_new_bytes(bytes);
  if (!read) return read;
  std::size_t skip = 0;
  if (end_ == 0) {
    // Shorter than the mark: a new file, or one whose first writer was killed.
    const std::string_view mark = kMagic.substr(0, bytes.size());
    if (!bytes.starts_with(mark)) {
      return make_error(Errc::kCorrupt, "'{}' is not a store file; remove it or choose another",
                        path_);
    }
    torn_ = !bytes.empty();
    if (bytes.size() < kMagic.size()) return {};
    skip = kMagic.size();
  }
  const std::size_t records = apply_records(std::string_view(bytes).substr(skip));
  end_ += static_cast<off_t>(skip + records);
  torn_ = skip + records < bytes.size();
  return {};
}

Result<void> FileStore::refresh() {
  const FileLock lock(fd_.get(), LOCK_SH);
  if (lock.error() != 0) return io_error("lock", lock.error());
  return replay();
}

Result<void> FileStore::write_record(char kind, std::string_view key, std::string_view value) {
  std::string record = end_ == 0 ? std::string(kMagic) : std::string();
  record.push_back(kind);
  wire::c10d::put_string(record, key);
  wire::c10d::put_string(record, value);
  // Truncates only if needed, because some file systems then write everything to the disk.
  if (torn_ && ::ftruncate(fd_.get(), end_) != 0) return io_error("truncate", errno);
  torn_ = true;  // Until the record is whole.
  std::size_t written = 0;
  while (written < record.size()) {
    const ssize_t count = ::pwrite(fd_.get(), record.data() + written, record.size() - written,
                                   end_ + static_cast<off_t>(written));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error("write", errno);
    written += static_cast<std::size_t>(count);
  }
  torn_ = false;
  end_ += static_cast<off_t>(record.size());
  apply_record(kind, key, value);
  return {};
}

template <typename Change>
Result<void> FileStore::update(Change change) {
  const FileLock lock(fd_.get(), LOCK_EX);
  if (lock.error() != 0) return io_error("lock", lock.error());
  Result<void> fresh = replay();
  if (!fresh) return fresh;
  return change();
}

template <typename Ready>
Result<bool> FileStore::wait_for(TimePoint deadline, Ready ready) {
  Result<bool> last = false;
  const auto done = [&] {
    const Result<void> fresh = refresh();
    last = fresh ? Result<bool>(ready()) : fresh.error();
    if (!last || *last || Clock::now() >= deadline) return true;
    const bool gives_up = WaitInterrupt::raised();
    if (gives_up) last = given_up(name());
    return gives_up;
  };
  for (auto interval = kFirstInterval; interval <= kLastInterval; interval *= 2) {
    if (done()) return last;
    std::this_thread::sleep_until(std::min<TimePoint>(Clock::now() + interval, deadline));
  }
  // Watch first and look then, so that no change is missed.
  const UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (watch) ::inotify_add_watch(watch.get(), own_path().c_str(), IN_MODIFY);
  while (!done()) {
    const auto left = std::chrono::ceil<Duration>(deadline - Clock::now());
    pollfd entry{watch.get(), POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(std::clamp(left, Duration(0), kLookAgain).count()));
    std::array<char, 4096> events;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    if ((entry.revents & POLLIN) != 0) {
      while (::read(watch.get(), events.data(), events.size()) > 0) {
      }
    }
  }
  return last;
}

Result<void> FileStore::set(std::string_view key, std::string_view value) {
  return update([&] { return write_record(kSetRecord, key, value); });
}

Result<std::int64_t> FileStore::add(std::string_view key, std::int64_t delta) {
  std::int64_t answer = 0;
  Result<void> done = update([&]() -> Result<void> {
    Result<std::int64_t> sum = map_.sum(key, delta);
    if (!sum) return sum.error();
    answer = *sum;
    return write_record(kSetRecord, key, std::to_string(answer));
  });
  if (!done) return done.error();
  return answer;
}

Result<std::string> FileStore::compare_set(std::string_view key, std::string_view expected,
                                           std::string_view desired) {
  std::string answer;
  Result<void> done = update([&]() -> Result<void> {
    const KeyMap::Compared compared = map_.compare(key, expected, desired);
    answer = compared.held;
    if (!compared.stores) return {};
    return write_record(kSetRecord, key, desired);
  });
  if (!done) return done.error();
  return answer;
}

Result<bool> FileStore::delete_key(std::string_view key) {
  bool there = false;
  Result<void> done = update([&]() -> Result<void> {
    there = map_.find(key) != nullptr;
    if (!there) return {};
    return write_record(kDeleteRecord, key, {});
  });
  if (!done) return done.error();
  return there;
}

Result<bool> FileStore::check(const std::vector<std::string>& keys) {
  Result<void> fresh = refresh();
  if (!fresh) return fresh.error();
  return map_.has_all(keys);
}

Result<std::int64_t> FileStore::num_keys() {
  Result<void> fresh = refresh();
  if (!fresh) return fresh.error();
  return static_cast<std::int64_t>(map_.values().size());
}

Result<std::vector<std::string>> FileStore::list_keys() {
  Result<void> fresh = refresh();
  if (!fresh) return fresh.error();
  std::vector<std::string> keys;
  keys.reserve(map_.values().size());
  for (const auto& [key, value] : map_.values()) keys.push_back(key);
  return keys;
}

Result<std::string> FileStore::get(std::string_view key, Timeout timeout) {
  const std::vector<std::string> keys{std::string(key)};
  if (Result<void> there = wait(keys, timeout); !there) return there.error();
  return *map_.find(key);
}

Result<std::vector<std::string>> FileStore::multi_get(const std::vector<std::string>& keys,
                                                      Timeout timeout) {
  if (Result<void> there = wait(keys, timeout); !there) return there.error();
  std::vector<std::string> values;
  for (const std::string& key : keys) values.push_back(*map_.find(key));
  return values;
}

Result<void> FileStore::wait(const std::vector<std::string>& keys, Timeout timeout) {
  Result<bool> there = wait_for(deadline_after(timeout), [&] { return map_.has_all(keys); });
  if (!there) return there.error();
  if (!*there) return missing_keys(name(), map_.missing(keys), timeout);
  return {};
}

}  // namespace

Result<std::unique_ptr<Store>> open_file_store(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) {
    return make_error(Errc::kIo, "cannot open store file '{}': {}", path,
                      std::generic_category().message(errno));
  }
  std::unique_ptr<Store> store = std::make_unique<FileStore>(std::move(fd), path);
  // Reads the file, so that a wrong file is noticed at once.
  Result<std::int64_t> keys = store->num_keys();
  if (!keys) return keys.error();
  return store;
}

}  // namespace ddp::store
