#include "worker/tensorboard/event_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include "common/base/errc.h"
#include "common/process/write_file.h"
#include "worker/tensorboard/record.h"

namespace ddp::tensorboard {
namespace {

constexpr std::string_view kName = "events.out.tfevents.ddp-run";

double wall_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

Result<UniqueFd> open_to_append(const std::string& path, int flags) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flags, 0666));
  if (!file) return io_error(path, "open", errno);
  return file;
}

Result<void> copy_ranges(std::FILE* from, const std::vector<ByteRange>& ranges, int to,
                         const std::string& path) {
  for (const ByteRange& range : ranges) {
    if (std::fseek(from, static_cast<long>(range.begin), SEEK_SET) != 0)
      return io_error(path, "read", errno);
    std::string piece;
    for (std::int64_t left = range.end - range.begin; left > 0;
         left -= static_cast<std::int64_t>(piece.size())) {
      piece.resize(static_cast<std::size_t>(std::min<std::int64_t>(left, 1 << 20)));
      if (std::fread(piece.data(), 1, piece.size(), from) != piece.size())
        return io_error(path, "read", errno);
      if (Result<void> done = write_all(to, piece, path); !done) return done;
    }
  }
  return {};
}

// Leaves only these ranges in the file. If they are not its beginning, another file takes its place
// at once, so that nothing is lost if this process is killed meanwhile.
Result<UniqueFd> keep_ranges(std::FILE* file, const std::vector<ByteRange>& ranges,
                             const std::string& path) {
  if (ranges.size() <= 1 && (ranges.empty() || ranges.front().begin == 0)) {
    Result<UniqueFd> kept = open_to_append(path, 0);
    if (!kept) return kept;
    const std::int64_t size = ranges.empty() ? 0 : ranges.front().end;
    if (::ftruncate(kept->get(), size) != 0) return io_error(path, "shorten", errno);
    return kept;
  }
  const std::string other = path + ".new";
  Result<UniqueFd> copy = open_to_append(other, O_TRUNC);
  if (!copy) return copy;
  if (auto done = copy_ranges(file, ranges, copy->get(), other); !done) return done.error();
  if (std::rename(other.c_str(), path.c_str()) != 0) return io_error(path, "replace", errno);
  return copy;
}

}  // namespace

Result<EventFile> EventFile::open(const std::string& folder, std::int64_t last_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return io_error(folder, "make the folder", error.value());
  const std::string path = std::filesystem::path(folder) / kName;
  const File file(std::fopen(path.c_str(), "re"));
  if (!file && errno != ENOENT) return io_error(path, "open", errno);
  StepsUpTo found;
  if (file && last_step >= 0) {
    Result<StepsUpTo> scanned = find_steps_up_to(file.get(), last_step);
    if (!scanned) {
      return make_error(scanned.error().code, "{}: {}; move the file away or choose another folder",
                        path, scanned.error().message);
    }
    found = *std::move(scanned);
  }
  Result<UniqueFd> kept = keep_ranges(file.get(), found.ranges, path);
  if (!kept) return kept.error();
  EventFile events(path, *std::move(kept), last_step, std::move(found.newest));
  if (!found.ranges.empty()) return events;
  if (auto begun = events.append(encode_version(wall_time())); !begun) return begun.error();
  return events;
}

Result<void> EventFile::add(std::int64_t step, std::span<const Scalar> scalars) {
  std::vector<Scalar> fresh;
  for (const Scalar& each : scalars) {
    const auto newest = newest_.find(each.tag);
    const bool is_there = newest != newest_.end() && newest->second == last_step_;
    if (step != last_step_ || !is_there) fresh.push_back(each);
  }
  if (fresh.empty()) return {};
  return append(encode_scalars(wall_time(), step, fresh));
}

Result<void> EventFile::add_late(std::int64_t step, const Scalar& scalar) {
  const auto [newest, is_first] = newest_.try_emplace(scalar.tag, step);
  if (!is_first && newest->second >= step) return {};
  newest->second = step;
  return append(encode_scalars(wall_time(), step, {&scalar, 1}));
}

Result<void> EventFile::append(std::string_view event) {
  const std::string record = record_of(event);
  std::string_view rest = record;
  const int failed = write_all(file_.get(), rest);
  if (failed == 0) return {};
  // A full disk may have taken a part, behind which no reader would find another record.
  struct stat now {};
  const auto taken = static_cast<off_t>(record.size() - rest.size());
  if (::fstat(file_.get(), &now) != 0 || ::ftruncate(file_.get(), now.st_size - taken) != 0)
    return io_error(path_, "shorten", errno);
  return io_error(path_, "write", failed);
}

}  // namespace ddp::tensorboard
