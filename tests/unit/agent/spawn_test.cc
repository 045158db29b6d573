#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/process/spawn_program.h"
#include "common/process/descriptor_limit.h"
#include "tests/support/pipe.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

using test::Pipe;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

struct Ended {
  std::string output;
  int exit_code = -1;
  int signal = 0;
};

SpawnRequest request(std::vector<std::string> command) {
  SpawnRequest request;
  request.command = std::move(command);
  request.environment = {"PATH=/usr/bin:/bin", "MARK=here"};
  return request;
}

Ended wait_for(const SpawnedProcess& process) {
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED), 0);
  Ended ended;
  (info.si_code == CLD_EXITED ? ended.exit_code : ended.signal) = info.si_status;
  return ended;
}

Ended run(std::vector<std::string> command, std::vector<int> inherited = {}) {
  Pipe pipe;
  SpawnRequest spawn_request = request(std::move(command));
  spawn_request.stdout_fd = spawn_request.stderr_fd = pipe.write.get();
  spawn_request.inherited_fds = std::move(inherited);
  const auto process = spawn(spawn_request);
  EXPECT_TRUE(process.has_value());
  pipe.write.reset();
  const std::string output = pipe.read_all();
  Ended ended = wait_for(*process);
  ended.output = output;
  return ended;
}

bool no_children() {
  return ::waitid(P_ALL, 0, nullptr, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD;
}

TEST(Spawn, EveryExitCodeComesBack) {
  for (int code = 0; code < 256; ++code) {
    const auto process = spawn(request({"sh", "-c", "exit " + std::to_string(code)}));
    ASSERT_TRUE(process.has_value()) << process.error().message;
    const Ended ended = wait_for(*process);
    EXPECT_EQ(ended.exit_code, code);
    EXPECT_EQ(ended.signal, 0);
  }
}

TEST(Spawn, EndsBySignalComeBack) {
  for (const int number :
       {SIGHUP, SIGINT, SIGQUIT, SIGABRT, SIGKILL, SIGUSR1, SIGSEGV, SIGPIPE, SIGTERM}) {
    const auto process =
        spawn(request({"sh", "-c", "ulimit -c 0; kill -" + std::to_string(number) + " $$"}));
    ASSERT_TRUE(process.has_value());
    EXPECT_EQ(wait_for(*process).signal, number);
  }
}

TEST(Spawn, ThePidfdBecomesReadableAtTheEnd) {
  const auto process = spawn(request({"sleep", "1000"}));
  ASSERT_TRUE(process.has_value());
  pollfd wait{process->pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 0), 0);
  ::kill(process->pid, SIGKILL);
  EXPECT_EQ(::poll(&wait, 1, 20'000), 1);
  wait_for(*process);
}

TEST(Spawn, AProgramThatIsNotThereIs127AndNamed) {
  const auto plain = spawn(request({"no-such-program-anywhere"}));
  ASSERT_FALSE(plain.has_value());
  EXPECT_EQ(spawn_failure_status(plain.error()), 127);
  EXPECT_THAT(plain.error().message,
              HasSubstr("no-such-program-anywhere: no such program in PATH"));
  const auto path = spawn(request({"/no/such/program"}));
  ASSERT_FALSE(path.has_value());
  EXPECT_EQ(spawn_failure_status(path.error()), 127);
  EXPECT_THAT(path.error().message, HasSubstr("/no/such/program: no such program"));
  EXPECT_TRUE(no_children()) << "a failed start leaves a process";
}

TEST(Spawn, AProgramThatCannotBeExecutedIs126AndNamed) {
  const test::TempDir dir;
  const std::string plain_file = dir.write("data.txt", "#!/bin/sh\nexit 0\n");
  const std::string orphan = dir.write("script", "#!/no/such/interpreter\n");
  const std::string from_windows = dir.write("from-windows", "#!/bin/sh\r\nexit 0\r\n");
  std::ifstream shell("/bin/sh", std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(shell), {});
  const auto loader = bytes.find("/lib64/ld-");
  ASSERT_NE(loader, std::string::npos);
  const std::string foreign = dir.write("foreign", bytes.replace(loader, 6, "/nosuc"));
  ASSERT_EQ(::chmod(foreign.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(orphan.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(from_windows.c_str(), 0755), 0);
  for (const auto& [program, why] : std::vector<std::pair<std::string, std::string>>{
           {plain_file, "Permission denied.*chmod"},
           {dir.path().string(), "cannot be executed"},
           {orphan, "names, /no/such/interpreter, does"},
           {from_windows, "Windows.*sed -i"},
           {foreign, "loader that it is linked for"}}) {
    const auto process = spawn(request({program}));
    ASSERT_FALSE(process.has_value()) << program;
    EXPECT_EQ(spawn_failure_status(process.error()), 126) << program;
    EXPECT_THAT(process.error().message, HasSubstr(program));
    EXPECT_THAT(process.error().message, ContainsRegex(why));
  }
  EXPECT_TRUE(no_children());
}

TEST(Spawn, AScriptWithoutFirstLineRunsUnderSh) {
  const test::TempDir dir;
  const std::string script = dir.write("script", "echo $1; exit 5\n");
  ASSERT_EQ(::chmod(script.c_str(), 0755), 0);
  const Ended ended = run({script, "argument"});
  EXPECT_EQ(ended.output, "argument\n");
  EXPECT_EQ(ended.exit_code, 5);
}

TEST(Spawn, ArgumentsAndEnvironmentArriveUnchanged) {
  const Ended ended = run({"sh", "-c", "printf '%s|' \"$@\"; env", "sh", "a b", "", "*", "\xff"});
  EXPECT_THAT(ended.output, HasSubstr("a b||*|\xff|"));
  EXPECT_THAT(ended.output, HasSubstr("MARK=here\n"));
  EXPECT_THAT(ended.output, Not(HasSubstr("DDP_BIN_DIR")))
      << "the parent's environment is not passed on by itself";
}

TEST(Spawn, OnlyNamedDescriptorsStayOpen) {
  const UniqueFd leaking(
      ::open("/dev/zero", O_RDONLY));  // Not close-on-exec, as a careless parent leaves it.
  const UniqueFd named(::open("/dev/full", O_RDONLY | O_CLOEXEC));
  const Ended ended = run({"ls", "-l", "/proc/self/fd"}, {named.get()});
  EXPECT_THAT(ended.output, ContainsRegex(" 0 -> /dev/null\n"));
  EXPECT_THAT(ended.output, ContainsRegex(" 1 -> pipe:"));
  EXPECT_THAT(ended.output, ContainsRegex(" 2 -> pipe:"));
  EXPECT_THAT(ended.output, HasSubstr(" " + std::to_string(named.get()) + " -> /dev/full\n"));
  // And the folder that ls reads.
  EXPECT_EQ(std::count(ended.output.begin(), ended.output.end(), '>'), 5) << ended.output;
}

TEST(Spawn, ADescriptorThatIsKeptBackStaysOurs) {
  if (raise_descriptor_limit() <= kKeptBack)
    GTEST_SKIP() << "the hard limit of open files is " << kKeptBack << " or less";
  Pipe pipe;
  UniqueFd kept = keep_back(std::move(pipe.write));
  EXPECT_GE(kept.get(), kKeptBack);
  const std::string number = std::to_string(kept.get());
  EXPECT_EQ(run({"sh", "-c", "test -e /proc/self/fd/" + number}).exit_code, 1);
  ASSERT_EQ(::write(kept.get(), "x", 1), 1);
  // Unless it is named.
  EXPECT_EQ(run({"sh", "-c", "echo y > /proc/self/fd/" + number}, {kept.get()}).exit_code, 0);
  kept.reset();
  EXPECT_EQ(pipe.read_all(), "xy\n");
}

TEST(Spawn, SignalsAreAsAProgramExpectsThem) {
  sigset_t blocked;
  sigset_t before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  const auto old = ::signal(SIGPIPE, SIG_IGN);
  const Ended ended = run({"cat", "/proc/self/status"});
  sigset_t after;
  ::sigprocmask(SIG_SETMASK, &before, &after);
  EXPECT_EQ(::signal(SIGPIPE, old), SIG_IGN) << "the child has changed the parent's handlers";
  EXPECT_EQ(::sigismember(&after, SIGUSR1), 1) << "the child has changed the parent's mask";
  EXPECT_THAT(
      ended.output,
      HasSubstr(
          "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n"));
}

TEST(Spawn, TheProcessLeadsItsOwnGroupAndSession) {
  const auto process = spawn(request({"sleep", "1000"}));
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(::getpgid(process->pid), process->pid);
  EXPECT_EQ(::getsid(process->pid), process->pid);
  ::kill(process->pid, SIGKILL);
  wait_for(*process);
}

TEST(Spawn, TheProcessDiesWithItsParent) {
  // The orphan comes to this process, which can then wait for its end.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  Pipe pipe;
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    const auto process = spawn(request({"sleep", "1000"}));
    const pid_t pid = process ? process->pid : -1;
    if (::write(pipe.write.get(), &pid, sizeof(pid)) != sizeof(pid)) ::_exit(1);
    for (;;) ::pause();
  }
  pid_t worker = -1;
  ASSERT_EQ(::read(pipe.read.get(), &worker, sizeof(worker)), static_cast<ssize_t>(sizeof(worker)));
  ASSERT_GT(worker, 0);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  siginfo_t info{};
  const auto has_ended = [&] {
    return ::waitid(P_PID, static_cast<id_t>(worker), &info, WEXITED | WNOHANG) == 0 &&
           info.si_pid == worker;
  };
  ASSERT_TRUE(test::wait_until(has_ended)) << ::kill(worker, SIGKILL);
  EXPECT_EQ(info.si_code, CLD_KILLED);
  EXPECT_EQ(info.si_status, SIGKILL);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(Spawn, AnArgumentListThatIsTooLongIsToldAsSuch) {
  const auto process = spawn(request({"true", std::string(200'000, 'x')}));
  ASSERT_FALSE(process.has_value());
  EXPECT_THAT(process.error().message, HasSubstr("longer than the system allows"));
}

}  // namespace
}  // namespace ddp::agent
