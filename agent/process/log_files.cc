#include "agent/process/log_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

namespace ddp::agent {
namespace {

constexpr std::size_t kMaxErrorFileBytes = 1u << 20;
// Limits of texts that go to the coordinator, which one message may hold for many workers.
constexpr std::size_t kMaxMessageBytes = 16u << 10;
constexpr std::size_t kMaxCallstackBytes = 32u << 10;

std::string job_folder(const config::JobSpec& spec) {
  return fmt::format("{}/{}", spec.log_dir, config::job_folder_name(spec.job_id));
}

std::string round_folder(const config::JobSpec& spec, Round round) {
  return fmt::format("{}/round_{}", job_folder(spec), round);
}

Result<void> make_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return make_error(Errc::kIo, "{}: cannot make its folder: {}", path, error.message());
  return {};
}

Result<UniqueFd> open_for_append(const std::string& path) {
  if (const auto made = make_folder_of(path); !made) return made.error();
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) return make_error(Errc::kIo, "{}: {}", path, std::generic_category().message(errno));
  return fd;
}

// Removes what an earlier start has left under this name. A link is deleted, because it would lead
// into another process's file. A file that is not empty gets another name. Only this node uses the
// name, so there is no race.
Result<void> make_way(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  if (std::filesystem::is_symlink(status)) {
    ::unlink(path.c_str());
    return {};
  }
  if (!std::filesystem::is_regular_file(status)) return {};
  if (std::filesystem::file_size(path, error) == 0) return {};
  std::string kept;
  for (int number = 1; kept.empty() || ::access(kept.c_str(), F_OK) == 0; ++number)
    kept = fmt::format("{}.{}", path, number);
  if (::rename(path.c_str(), kept.c_str()) == 0) return {};
  return make_error(Errc::kIo, "{}: {}", kept, std::generic_category().message(errno));
}

}  // namespace

LogFiles log_files_of(const config::JobSpec& spec, Round round, Rank rank, int streams) {
  std::string host = spec.host;
  std::replace(host.begin(), host.end(), '/', '_');
  // The rank comes first, so the files of a folder sort by rank.
  return {fmt::format("{}/rank_{}.{}", round_folder(spec, round), rank, host), streams};
}

LogFiles standby_log_files(const config::JobSpec& spec, const std::string& name, int streams) {
  return {fmt::format("{}/standby/{}", job_folder(spec), name), streams};
}

std::string filtered_log_path(const config::JobSpec& spec, Round round, int group_rank,
                              int stream) {
  return fmt::format("{}/node_{}/filtered_{}.log", round_folder(spec, round), group_rank,
                     stream == config::kStdout ? "stdout" : "stderr");
}

std::string flight_log_path(const config::JobSpec& spec, Round round) {
  return round_folder(spec, round) + "/flight_recorder.jsonl";
}

Result<UniqueFd> open_log_file(const std::string& path) {
  if (const auto free = make_way(path); !free) return free.error();
  return open_for_append(path);
}

Result<void> clear_old_log_files(const LogFiles& files) {
  ::unlink(files.error_path().c_str());
  for (const int stream : {config::kStdout, config::kStderr}) {
    if (const auto free = make_way(files.path_of(stream)); !free) return free.error();
  }
  return {};
}

Result<void> link_log_files(const LogFiles& files, const LogFiles& target) {
  if (const auto made = make_folder_of(files.base); !made) return made.error();
  // Relative, so that the folder of the job can be moved.
  const auto folder = std::filesystem::path(files.base).parent_path();
  for (const int stream : {config::kStdout, config::kStderr}) {
    const std::string link = files.path_of(stream);
    const std::string path = target.path_of(stream);
    if (const auto free = make_way(link); !free) return free.error();
    if (::access(path.c_str(), F_OK) != 0) continue;  // Not every stream has a file.
    const std::string to = std::filesystem::path(path).lexically_relative(folder).string();
    if (::symlink(to.c_str(), link.c_str()) != 0 && errno != EEXIST)
      return make_error(Errc::kIo, "{}: {}", link, std::generic_category().message(errno));
  }
  return {};
}

Result<void> append_to_log(const std::string& path, const std::string& lines) {
  const Result<UniqueFd> file = open_for_append(path);
  if (!file) return file.error();
  if (::write(file->get(), lines.data(), lines.size()) != static_cast<ssize_t>(lines.size()))
    return make_error(Errc::kIo, "{}: {}", path, std::generic_category().message(errno));
  return {};
}

std::string read_error_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  std::string text(kMaxErrorFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

void cut_message(std::string& message) {
  message.resize(std::min(message.size(), kMaxMessageBytes));
}

wire::ErrorFile error_in(const std::string& text) {
  wire::ErrorFile error = wire::decode_error_file(text);
  cut_message(error.message);
  error.callstack.resize(std::min(error.callstack.size(), kMaxCallstackBytes));
  return error;
}

}  // namespace ddp::agent
