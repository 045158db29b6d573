#include "agent/process/log_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddp::agent {
namespace {

constexpr std::size_t kMaxErrorFileBytes = 1u << 20;

// A job id becomes one path component.
std::string folder_name(std::string job_id) {
  for (char& c : job_id) {
    if (c == '/') c = '_';
  }
  if (job_id.empty() || job_id == "." || job_id == "..") job_id.insert(0, "job_");
  return job_id;
}

Result<UniqueFd> open_for_append(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) return make_error(Errc::kIo, "{}: {}", path, std::generic_category().message(errno));
  return fd;
}

Result<std::string> make_round_folder(const std::string& log_dir, const std::string& job_id,
                                      Round round) {
  const std::string folder = fmt::format("{}/{}/round_{}", log_dir, folder_name(job_id), round);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return make_error(Errc::kIo, "{}: {}", folder, error.message());
  return folder;
}

}  // namespace

Result<LogFiles> open_log_files(const std::string& log_dir, const std::string& job_id, Round round,
                                Rank rank) {
  const Result<std::string> folder = make_round_folder(log_dir, job_id, round);
  if (!folder) return folder.error();
  const std::string base = fmt::format("{}/rank_{}", *folder, rank);
  Result<UniqueFd> out = open_for_append(base + ".out");
  if (!out) return out.error();
  Result<UniqueFd> err = open_for_append(base + ".err");
  if (!err) return err.error();
  const std::string error_path = base + ".error.json";
  ::unlink(error_path.c_str());
  return LogFiles{std::move(*out), std::move(*err), base + ".err", error_path};
}

Result<void> append_flight_log(const std::string& log_dir, const std::string& job_id, Round round,
                               const std::string& lines) {
  const Result<std::string> folder = make_round_folder(log_dir, job_id, round);
  if (!folder) return folder.error();
  const std::string path = *folder + "/flight_recorder.jsonl";
  const Result<UniqueFd> file = open_for_append(path);
  if (!file) return file.error();
  // At once: other nodes may append too.
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
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("message")) return {};
  const nlohmann::json& message = json["message"];
  if (message.is_string()) return message.get<std::string>();
  if (message.is_object() && message.contains("message") && message["message"].is_string()) {
    return message["message"].get<std::string>();
  }
  return {};
}

}  // namespace ddp::agent
