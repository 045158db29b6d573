#include "worker/trainer_launch/launch.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>

#include "common/process/this_process.h"
#include "worker/runtime/own_program.h"

namespace ddp::trainer {
namespace {

// This program's file, and the arguments that it was given.
std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> command;
  for (std::size_t begin = 0; begin < all.size(); begin = all.find('\0', begin) + 1) {
    command.push_back(all.substr(begin, all.find('\0', begin) - begin));
  }
  if (command.empty()) command.emplace_back();
  command[0] = own_executable();
  return command;
}

}  // namespace

void launch(const LaunchPlan& plan) {
  if (plan.start == LaunchPlan::Start::kNothing) return;
  std::vector<std::string> command =
      launch_command(runtime::own_program("ddp-run", "DDP_RUN"), plan, own_command());
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);  // What was printed is this process's, which is about to be another one.
  ::execvp(argv[0], argv.data());
  throw std::runtime_error(fmt::format(
      "Trainer: several workers are wanted, but {} cannot be started: {}; put it into PATH or "
      "name it in DDP_RUN",
      command[0], std::generic_category().message(errno)));
}

}  // namespace ddp::trainer
