#include "launcher/ddp_run/subprogram.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>

#include "common/base/exit_codes.h"
#include "common/process/this_process.h"

namespace ddp::run {
namespace {

constexpr std::array<std::string_view, 2> kSubprograms{"top", "demo"};

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
  const std::string& word = arguments[0];
  if (std::find(kSubprograms.begin(), kSubprograms.end(), word) == kSubprograms.end())
    return std::nullopt;
  return become(word, program_beside("ddp-" + word), {arguments.begin() + 1, arguments.end()});
}

}  // namespace ddp::run
