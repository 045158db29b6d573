#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stdlib.h>

// Real programs under test: started, watched, killed, and never left behind.
namespace ddp::test {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.

// Only broken code reaches it, so no test depends on speed.
constexpr std::chrono::milliseconds kWaitLimit = 2min;

// Polls until the condition holds; returns false if it does not within `limit`.
inline bool wait_until(const std::function<bool()>& condition,
                       std::chrono::milliseconds limit = kWaitLimit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

struct ProcessOptions {
  std::map<std::string, std::string> environment;  // Added to this process's own.
  std::string folder;                              // Working folder; empty: this process's.
  std::vector<int> inherited = {};                 // Descriptors that it inherits.
  int input = -1;                                  // Its standard input; -1: this process's.
};

// One child process. Memory holds its standard output and standard error, separately, with what its
// own children write. Both may be read at any time. The destructor kills the process if it still
// runs.
class Process {
 public:
  // A program's main().
  using Main = int (*)(int argc, char** argv);

  explicit Process(std::vector<std::string> arguments, const ProcessOptions& options = {})
      : Process(nullptr, std::move(arguments), options) {}
  // Runs a program that is linked into this one, which saves loading large libraries. Call it only
  // while this process has a single thread. The child ends without destructors.
  Process(Main main, std::vector<std::string> arguments, const ProcessOptions& options = {})
      : out_(memory_file()), err_(memory_file()) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::fflush(nullptr);  // So that the child does not write this process's buffers, too.
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ > 0) return;
    for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
    for (const int fd : options.inherited) ::fcntl(fd, F_SETFD, 0);
    if (options.input >= 0) ::dup2(options.input, STDIN_FILENO);
    ::dup2(out_, STDOUT_FILENO);
    ::dup2(err_, STDERR_FILENO);
    if (!options.folder.empty() && ::chdir(options.folder.c_str()) != 0) ::_exit(125);
    if (main == nullptr) {
      ::execvp(argv[0], argv.data());
      ::_exit(125);
    }
    const int status = main(static_cast<int>(arguments.size()), argv.data());
    std::fflush(nullptr);
    ::_exit(status);
  }
  ~Process() {
    if (!status_) {
      kill(SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(out_);
    ::close(err_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void kill(int signal) const {
    if (!status_) ::kill(pid_, signal);
  }

  // Waits for the exit status, 128 + n for signal n; returns nothing if it does not end in `limit`.
  std::optional<int> wait(std::chrono::milliseconds limit = kWaitLimit) {
    wait_until([this] { return has_ended(); }, limit);
    return status_;
  }
  bool has_ended() {
    int status = 0;
    if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    return status_.has_value();
  }

  std::string out() const { return contents(out_); }
  std::string err() const { return contents(err_); }

  // Waits until the output contains `text`.
  bool prints(const std::string& text, std::chrono::milliseconds limit = kWaitLimit) {
    return wait_until([&] { return out().find(text) != std::string::npos; }, limit);
  }
  bool complains(const std::string& text, std::chrono::milliseconds limit = kWaitLimit) {
    return wait_until([&] { return err().find(text) != std::string::npos; }, limit);
  }

 private:
  // Several processes write to it at once. Without O_APPEND, the kernel lets two writes to a memfd
  // begin at the same place, and one of them is lost.
  static int memory_file() {
    const int fd = ::memfd_create("output", MFD_CLOEXEC);
    if (fd < 0 || ::fcntl(fd, F_SETFL, O_APPEND) != 0) throw std::runtime_error("memfd_create");
    return fd;
  }
  static std::string contents(int fd) {
    struct stat info {};
    ::fstat(fd, &info);
    std::string text(static_cast<std::size_t>(info.st_size), '\0');
    const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
    text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return text;
  }

  int out_;
  int err_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

struct Finished {
  int status = -1;  // -1: it did not end in time and was killed.
  std::string out;
  std::string err;
};

// Runs a program to its end.
inline Finished run(Process::Main main, std::vector<std::string> arguments,
                    const ProcessOptions& options = {},
                    std::chrono::milliseconds limit = kWaitLimit) {
  Process process(main, std::move(arguments), options);
  const int status = process.wait(limit).value_or(-1);
  return Finished{status, process.out(), process.err()};
}
inline Finished run(std::vector<std::string> arguments, const ProcessOptions& options = {},
                    std::chrono::milliseconds limit = kWaitLimit) {
  return run(nullptr, std::move(arguments), options, limit);
}

// The command that runs one test of this program in a new process, even a test that GoogleTest
// skips because its name begins with DISABLED_. For the peer of a test whose process has threads:
// after a fork without exec, its libraries could not be used.
inline std::vector<std::string> this_program(const std::string& test) {
  return {"/proc/self/exe", "--gtest_also_run_disabled_tests", "--gtest_filter=" + test};
}

}  // namespace ddp::test
