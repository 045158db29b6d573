#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "common/base/ids.h"

namespace ddp::config {

// The folder for the files of one node's part of a job while it runs, such as the error files of
// its workers. The agent makes it and removes it at its end. If the agent was killed, ddp-run
// removes it.
inline std::string scratch_folder(const NodeId& node_id) {
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  return ((error ? std::filesystem::path("/tmp") : temporary) / ("ddp-run-" + node_id)).string();
}

// False if it cannot be made, or if another user has one of that name.
inline bool make_scratch_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0) return true;
  struct stat info {};
  return errno == EEXIST && ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
         info.st_uid == ::geteuid();
}

inline void remove_scratch_folder(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace ddp::config
