#include "launcher/ddp_run/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <system_error>

#include "launcher/ddp_run/exit_error.h"

namespace ddp::run {
namespace {

// What torchrun does in a child made by multiprocessing: the script becomes __main__ of an
// interpreter that runs already.
constexpr const char* kRunPath =
    "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')";

bool runs_under_python(const Options& options) {
  return options.run_path || options.module ||
         (!options.no_python && options.program.ends_with(".py"));
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

bool is_executable_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

Error not_executable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return exit_error(kExitNotExecutable, "{}: is a folder, not a program", path);
  }
  return exit_error(
      kExitNotExecutable,
      "{}: cannot be executed; try chmod +x {}, or a name ending in .py for a Python script", path,
      path);
}

Result<void> check_executable(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) {
    if (!exists(name)) return exit_error(kExitNotFound, "{}: there is no such program", name);
    if (!is_executable_file(name)) return not_executable(name);
    return {};
  }
  std::string refused;
  for (std::size_t begin = 0; begin <= search_path.size();) {
    const auto end = std::min(search_path.find(':', begin), search_path.size());
    const std::string folder = search_path.substr(begin, end - begin);
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (is_executable_file(path)) return {};
    if (refused.empty() && exists(path)) refused = path;
    begin = end + 1;
  }
  if (!refused.empty()) return not_executable(refused);
  if (exists(name)) {
    return exit_error(kExitNotFound,
                      "{}: there is no such program in PATH; for the one in this folder write ./{}",
                      name, name);
  }
  return exit_error(kExitNotFound, "{}: there is no such program in PATH", name);
}

}  // namespace

std::vector<std::string> worker_command(const Options& options) {
  std::vector<std::string> command;
  if (runs_under_python(options)) {
    command = {options.python, "-u"};
    if (options.run_path) {
      command.insert(command.end(), {"-c", kRunPath});
    } else if (options.module) {
      command.emplace_back("-m");
    }
  }
  command.push_back(options.program);
  command.insert(command.end(), options.arguments.begin(), options.arguments.end());
  return command;
}

Result<void> check_program(const Options& options, const std::string& search_path) {
  if (!runs_under_python(options)) return check_executable(options.program, search_path);
  if (const auto python = check_executable(options.python, search_path); !python) {
    return Error{
        python.error().code,
        python.error().message + "; PYTHON_EXEC names the interpreter if it is not python3"};
  }
  if (options.module && !options.run_path) return {};  // Only Python itself can find it.
  if (!exists(options.program)) {
    return exit_error(kExitNotFound, "{}: there is no such file to run under {}", options.program,
                      options.python);
  }
  if (::access(options.program.c_str(), R_OK) != 0) {
    return exit_error(kExitNotExecutable, "{}: cannot be read: {}", options.program,
                      std::generic_category().message(errno));
  }
  return {};
}

}  // namespace ddp::run
