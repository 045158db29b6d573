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

Result<UniqueFd> open_for_append(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) return make_error(Errc::kIo, "{}: {}", path, std::generic_category().message(errno));
  return fd;
}

Result<std::string> make_folder(const std::string& log_dir, const std::string& job_id,
                                const std::string& name) {
  const std::string folder =
      fmt::format("{}/{}/{}", log_dir, config::job_folder_name(job_id), name);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return make_error(Errc::kIo, "{}: {}", folder, error.message());
  return folder;
}

std::string round_folder(Round round) { return fmt::format("round_{}", round); }

// The rank comes first, so the files of a folder sort by rank.
std::string file_of_rank(const std::string& folder, Rank rank, std::string host) {
  std::replace(host.begin(), host.end(), '/', '_');
  return fmt::format("{}/rank_{}.{}", folder, rank, host);
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

Result<LogFiles> open_files(const std::string& base, int streams) {
  LogFiles files;
  files.base = base;
  files.streams = streams;
  for (const int stream : {config::kStdout, config::kStderr}) {
    const std::string path = files.path_of(stream);
    if (const auto free = make_way(path); !free) return free.error();
    if ((streams & stream) == 0) continue;
    Result<UniqueFd> file = open_for_append(path);
    if (!file) return file.error();
    (stream == config::kStdout ? files.out : files.err) = std::move(*file);
  }
  ::unlink(files.error_path().c_str());
  return files;
}

}  // namespace

Result<LogFiles> open_log_files(const config::JobSpec& spec, Round round, Rank rank, int streams) {
  const Result<std::string> folder = make_folder(spec.log_dir, spec.job_id, round_folder(round));
  if (!folder) return folder.error();
  return open_files(file_of_rank(*folder, rank, spec.host), streams);
}

Result<LogFiles> open_standby_log_files(const std::string& log_dir, const std::string& job_id,
                                        const std::string& name, int streams) {
  const Result<std::string> folder = make_folder(log_dir, job_id, "standby");
  if (!folder) return folder.error();
  return open_files(fmt::format("{}/{}", *folder, name), streams);
}

Result<void> link_log_files(const config::JobSpec& spec, Round round, Rank rank,
                            const std::string& base) {
  const Result<std::string> folder = make_folder(spec.log_dir, spec.job_id, round_folder(round));
  if (!folder) return folder.error();
  // Relative, so that the folder of the job can be moved.
  const std::string target = std::filesystem::path(base).lexically_relative(*folder).string();
  for (const char* ending : {".out", ".err"}) {
    const std::string link = file_of_rank(*folder, rank, spec.host) + ending;
    if (const auto free = make_way(link); !free) return free.error();
    if (::access((base + ending).c_str(), F_OK) != 0) continue;  // Not every stream has a file.
    if (::symlink((target + ending).c_str(), link.c_str()) != 0 && errno != EEXIST)
      return make_error(Errc::kIo, "{}: {}", link, std::generic_category().message(errno));
  }
  return {};
}

Result<UniqueFd> open_filtered_log(const std::string& log_dir, const std::string& job_id,
                                   Round round, int group_rank, int stream) {
  const Result<std::string> folder =
      make_folder(log_dir, job_id, fmt::format("{}/node_{}", round_folder(round), group_rank));
  if (!folder) return folder.error();
  const std::string path =
      fmt::format("{}/filtered_{}.log", *folder, stream == config::kStdout ? "stdout" : "stderr");
  if (const auto free = make_way(path); !free) return free.error();
  return open_for_append(path);
}

Result<void> append_flight_log(const std::string& log_dir, const std::string& job_id, Round round,
                               const std::string& lines) {
  const Result<std::string> folder = make_folder(log_dir, job_id, round_folder(round));
  if (!folder) return folder.error();
  const std::string path = *folder + "/flight_recorder.jsonl";
  const Result<UniqueFd> file = open_for_append(path);
  if (!file) return file.error();
  // In one write, because other nodes may append, too.
  if (::write(file->get(), lines.data(), lines.size()) != static_cast<ssize_t>(lines.size()))
    return make_error(Errc::kIo, "{}: {}", path, std::generic_category().message(errno));
  return {};
}

wire::ErrorFile read_error_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  std::string text(kMaxErrorFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  wire::ErrorFile error = wire::decode_error_file(text);
  error.message.resize(std::min(error.message.size(), kMaxMessageBytes));
  error.callstack.resize(std::min(error.callstack.size(), kMaxCallstackBytes));
  return error;
}

}  // namespace ddp::agent
