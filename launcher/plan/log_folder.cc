#include "launcher/plan/log_folder.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "common/base/exit_error.h"
#include "common/config/output_spec.h"

namespace ddp::plan {
namespace {

constexpr const char* kLatest = "latest";

}  // namespace

Result<std::string> make_log_folder(const flags::Options& options) {
  if (options.log_dir.empty()) return std::string();
  std::error_code error;
  const std::string path = std::filesystem::absolute(options.log_dir, error).lexically_normal();
  if (!error && options.spec.dry_run) return path;
  if (!error) std::filesystem::create_directories(path, error);
  if (!error && !std::filesystem::is_directory(path))
    error = std::make_error_code(std::errc::not_a_directory);
  if (!error && ::access(path.c_str(), W_OK | X_OK) != 0) error = errno_code(errno);
  if (!error) return path;
  if (options.log_dir_is_default) {
    return exit_error(kExitInvalidValue,
                      "the folder for the workers' output, {}, cannot be written: {}; name another "
                      "one with --log-dir",
                      path, error.message());
  }
  return exit_error(kExitInvalidValue,
                    "--log-dir {}: cannot be written: {}; name a folder that you can write",
                    options.log_dir, error.message());
}

void link_latest(const std::string& log_dir, const std::string& job_id) {
  const std::string folder = config::job_folder_name(job_id);
  const std::filesystem::path link = std::filesystem::path(log_dir) / kLatest;
  std::error_code error;
  const auto status = std::filesystem::symlink_status(link, error);
  if (folder == kLatest || (std::filesystem::exists(status) && !is_symlink(status))) return;
  // Made under another name and renamed, so that readers always find the old link or the new one.
  const std::string fresh = fmt::format("{}.{}", link.string(), ::getpid());
  if (::symlink(folder.c_str(), fresh.c_str()) != 0) return;
  if (::rename(fresh.c_str(), link.c_str()) != 0) ::unlink(fresh.c_str());
}

}  // namespace ddp::plan
