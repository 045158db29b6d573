#include "launcher/status/top_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "common/base/exit_codes.h"

namespace ddp::status {

std::optional<int> run_top_command(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != "top") return std::nullopt;
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (own.parent_path() / "ddp-top").string();
  std::vector<char*> words{const_cast<char*>(program.c_str())};
  for (std::size_t i = 1; i < arguments.size(); ++i)
    words.push_back(const_cast<char*>(arguments[i].c_str()));
  words.push_back(nullptr);
  ::execv(program.c_str(), words.data());
  std::fprintf(stderr, "ddp-run top: %s cannot be started: %s\n", program.c_str(),
               std::generic_category().message(errno).c_str());
  return kExitNotFound;
}

}  // namespace ddp::status
