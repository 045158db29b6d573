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

}  // namespace

Result<LogFiles> open_log_files(const std::string& log_dir, const std::string& job_id, Round round,
                                Rank rank) {
  const std::string folder = fmt::format("{}/{}/round_{}", log_dir, folder_name(job_id), round);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return make_error(Errc::kIo, "{}: {}", folder, error.message());
  const std::string base = fmt::format("{}/rank_{}", folder, rank);
  Result<UniqueFd> out = open_for_append(base + ".out");
  if (!out) return out.error();
  Result<UniqueFd> err = open_for_append(base + ".err");
  if (!err) return err.error();
  const std::string error_path = base + ".error.json";
  ::unlink(error_path.c_str());
  return LogFiles{std::move(*out), std::move(*err), base + ".err", error_path};
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
