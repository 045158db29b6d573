#include "launcher/ddp_run/subprogram.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "common/base/exit_codes.h"

namespace ddp::run {
namespace {

struct Subprogram {
  std::string_view word;
  std::string_view program;
};
constexpr std::array kSubprograms{Subprogram{"top", "ddp-top"}, Subprogram{"demo", "ddp-demo"}};

int become(const std::string& word, const std::string& program,
           const std::vector<std::string>& arguments) {
  std::vector<char*> words{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  ::execv(program.c_str(), words.data());
  std::fprintf(stderr, "ddp-run %s: %s cannot be started: %s\n", word.c_str(), program.c_str(),
               std::generic_category().message(errno).c_str());
  return kExitNotFound;
}

}  // namespace

std::optional<int> run_subprogram(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return std::nullopt;
  for (const auto& [word, name] : kSubprograms) {
    if (arguments[0] != word) continue;
    std::error_code error;
    const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
    const std::string program = (own.parent_path() / name).string();
    return become(arguments[0], program, {arguments.begin() + 1, arguments.end()});
  }
  return std::nullopt;
}

}  // namespace ddp::run
