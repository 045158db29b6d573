#include "worker/checkpoint/tool/tool.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "common/base/release.h"
#include "worker/checkpoint/tool/commands.h"

namespace ddp::checkpoint {
namespace {

std::string usage() {
  std::string text = "usage: ddp-checkpoint COMMAND ARGUMENTS\n";
  for (const Command& command : kCommands) {
    text += fmt::format("  {:<8} {}\n", command.name, command.summary);
  }
  return text +
         "`ddp-checkpoint COMMAND --help` explains a command, --version names the release.\n"
         "Exit status: 0 for success, 2 for a wrong command line, 64 for an invalid value,\n"
         "65 if something is missing or damaged, 68 if something cannot be written.\n";
}

}  // namespace

int run_tool(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  const auto asks_help = [](const std::string& argument) {
    return argument == "--help" || argument == "-h";
  };
  if (!arguments.empty() && asks_help(arguments[0])) {
    out << usage();
    return kExitSuccess;
  }
  if (!arguments.empty() && arguments[0] == "--version") {
    out << fmt::format("ddp-checkpoint {}\n", release());
    return kExitSuccess;
  }
  const auto command =
      std::find_if(kCommands.begin(), kCommands.end(), [&arguments](const Command& candidate) {
        return !arguments.empty() && arguments[0] == candidate.name;
      });
  if (command == kCommands.end()) {
    if (!arguments.empty())
      err << fmt::format("ddp-checkpoint: there is no command \"{}\"\n", arguments[0]);
    err << usage();
    return kExitUsage;
  }
  if (std::any_of(arguments.begin() + 1, arguments.end(), asks_help)) {
    out << command->help;
    return kExitSuccess;
  }
  return command->run({arguments.begin() + 1, arguments.end()}, out, err);
}

}  // namespace ddp::checkpoint
