#include "launcher/plan/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/base/exit_error.h"
#include "common/base/nearest.h"
#include "common/base/template_text.h"
#include "launcher/plan/python_program.h"

namespace ddp::plan {
namespace {

// As torchrun's --run-path: the script becomes __main__ of an interpreter that already runs.
constexpr const char* kRunPath =
    "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')";

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

bool is_executable_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

Error not_executable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return exit_error(kExitNotExecutable, "{}: is a folder without __main__.py, not a program",
                      path);
  }
  return exit_error(kExitNotExecutable, "{}: cannot be executed; try chmod +x {}", path, path);
}

bool has_slash(const std::string& name) { return name.find('/') != std::string::npos; }

// What a search for a name has found: the first program, and the first file that is not a program.
struct Found {
  std::string program;
  std::string refused;
};

Found search(const std::string& name, const std::string& search_path) {
  Found found;
  for (std::size_t begin = 0; begin <= search_path.size();) {
    const auto end = std::min(search_path.find(':', begin), search_path.size());
    const std::string folder = search_path.substr(begin, end - begin);
    std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (is_executable_file(path)) {
      found.program = std::move(path);
      return found;
    }
    if (found.refused.empty() && exists(path)) found.refused = std::move(path);
    begin = end + 1;
  }
  return found;
}

bool runs_under_python(const flags::Options& options) {
  const std::string& program = options.spec.program;
  if (options.run_path || options.module) return true;
  if (options.no_python) return false;
  if (program.ends_with(".py")) return true;
  if (!is_for_python(program)) return false;
  // A file in this folder that a shell would execute only as ./NAME does not hide a program in
  // PATH.
  return has_slash(program) || !is_executable_file(program) ||
         search(program, options.search_path).program.empty();
}

Result<void> check_executable(const std::string& name, const std::string& search_path) {
  if (has_slash(name)) {
    if (!exists(name)) return exit_error(kExitNotFound, "{}: there is no such program", name);
    if (!is_executable_file(name)) return not_executable(name);
    return {};
  }
  const Found found = search(name, search_path);
  if (!found.program.empty()) return {};
  if (!found.refused.empty()) return not_executable(found.refused);
  if (exists(name)) {
    return exit_error(kExitNotFound,
                      "{}: there is no such program in PATH; for the one in this folder write ./{}",
                      name, name);
  }
  return exit_error(kExitNotFound, "{}: there is no such program in PATH", name);
}

// A mistyped subcommand is taken for a program. With more than a letter or a third of them wrong,
// short names of programs would be near one, too.
std::string meant_subcommand(const std::string& program) {
  static const std::vector<std::string> names{"check", "demo", "status", "top", "trace"};
  const std::string name(nearest_of(program, names));
  const bool is_near =
      !name.empty() && edit_distance(program, name) <= std::max<std::size_t>(1, program.size() / 3);
  return is_near ? fmt::format("; did you mean ddp-run {}?", name) : "";
}

}  // namespace

std::vector<std::string> worker_command(const flags::Options& options) {
  std::vector<std::string> command;
  if (runs_under_python(options)) {
    command = {options.python, "-u"};
    if (options.run_path) {
      command.insert(command.end(), {"-c", kRunPath});
    } else if (options.module) {
      command.emplace_back("-m");
    }
  }
  command.push_back(options.spec.program);
  command.insert(command.end(), options.arguments.begin(), options.arguments.end());
  return command;
}

std::string python_of(const flags::Options& options) {
  if (runs_under_python(options)) return options.python;
  const std::string& program = options.spec.program;
  if (is_python(program)) return program;
  const std::string interpreter =
      interpreter_of(has_slash(program) ? program : search(program, options.search_path).program);
  if (is_python(interpreter)) return interpreter;
  // "numactl --membind 0 python3 train.py".
  const auto word = std::find_if(options.arguments.begin(), options.arguments.end(), is_python);
  return word == options.arguments.end() ? std::string() : *word;
}

Result<void> check_program(const flags::Options& options) {
  if (!runs_under_python(options)) {
    auto found = check_executable(options.spec.program, options.search_path);
    if (found || exit_code_of(found.error()) != kExitNotFound) return found;
    return Error{found.error().code,
                 found.error().message + meant_subcommand(options.spec.program)};
  }
  if (const auto python = check_executable(options.python, options.search_path); !python) {
    return Error{
        python.error().code,
        python.error().message + "; PYTHON_EXEC names the interpreter if it is not python3"};
  }
  if (options.module && !options.run_path) return {};  // Only Python itself can find it.
  // The name may depend on the local rank; only that of local rank 0 is checked.
  const std::string script = safe_substitute(options.spec.program, "local_rank", "0");
  if (!exists(script)) {
    return exit_error(kExitNotFound, "{}: there is no such file to run under {}", script,
                      options.python);
  }
  if (::access(script.c_str(), R_OK) != 0) {
    return exit_error(kExitNotExecutable, "{}: cannot be read: {}", script,
                      std::generic_category().message(errno));
  }
  return {};
}

}  // namespace ddp::plan
