#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include <asio/io_context.hpp>

#include "agent/shell/agent_options.h"
#include "agent/shell/agent_shell.h"
#include "agent/shell/describe_workers.h"
#include "agent/shell/task_server.h"
#include "common/auth/crypto_library.h"
#include "common/base/exit_codes.h"
#include "common/base/release.h"
#include "common/base/unique_fd.h"
#include "common/config/job_spec.h"
#include "common/process/descriptor_limit.h"
#include "common/process/standard_descriptors.h"

namespace {

using namespace ddp;  // NOLINT(google-build-using-namespace): a main file.

Result<std::string> read_all(int fd) {
  std::string text;
  char buffer[16 * 1024];
  for (;;) {
    const ssize_t size = ::read(fd, buffer, sizeof(buffer));
    if (size > 0) text.append(buffer, static_cast<std::size_t>(size));
    if (size == 0) return text;
    if (size < 0 && errno != EINTR) {
      return make_error(Errc::kIo, "--job-fd {}: {}", fd, std::generic_category().message(errno));
    }
  }
}

void prepare_process() {
  // A lost reader of our output and a limit on file sizes are errors to handle, and must not end
  // the agent.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  // ddp-run puts this process into a background process group of its terminal. With `stty tostop`,
  // writing there would stop it.
  ::signal(SIGTTOU, SIG_IGN);
  // If SIGCHLD were ignored, the kernel would discard the statuses of workers.
  ::signal(SIGCHLD, SIG_DFL);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  raise_descriptor_limit();  // A worker needs four descriptors.
}

// Blocks the checkpoint signal and the signals that ddp-run forwards until there are handlers for
// them. ddp-run has blocked them from the start.
void block_signals(int checkpoint_signal) {
  sigset_t blocked;
  ::sigemptyset(&blocked);
  if (checkpoint_signal != 0) ::sigaddset(&blocked, checkpoint_signal);
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) ::sigaddset(&blocked, number);
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

int fail(const Error& error, int status) {
  std::fprintf(stderr, "ddp-agent: %s\n", error.message.c_str());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  // First, while the parent is still the process that started this one.
  const pid_t parent = ::getppid();
  fill_standard_descriptors();
  const auto options = agent::parse_agent_options(std::vector<std::string>(argv + 1, argv + argc));
  if (!options) return fail(options.error(), kExitUsage);
  if (options->help || options->version) {
    const std::string version = fmt::format("ddp-agent {}\n", ddp::release());
    std::fputs(options->help ? agent::kAgentUsage : version.c_str(), stdout);
    return kExitSuccess;
  }
  if (!options->task_socket.empty()) {
    return agent::serve_task(
        {options->task_socket, options->task_rank, Duration(options->task_limit_ms)});
  }
  prepare_process();

  UniqueFd job_fd(options->job_fd);
  agent::AgentStart start;
  start.result_fd.reset(options->result_fd);
  ::fcntl(start.result_fd.get(), F_SETFD, FD_CLOEXEC);
  start.parent = parent;
  start.last_round = options->last_round;
  start.restarts = options->restarts;
  if (options->coordinator_fd >= 0) {
    start.coordinator_fd.reset(options->coordinator_fd);
    ::fcntl(start.coordinator_fd.get(), F_SETFD, FD_CLOEXEC);
  }
  if (options->tasks_fd >= 0) {
    start.tasks_fd.reset(options->tasks_fd);
    ::fcntl(start.tasks_fd.get(), F_SETFD, FD_CLOEXEC);
  }
  const auto text = read_all(job_fd.get());
  if (!text) return fail(text.error(), kExitInternal);
  auto spec = config::decode_job_spec(*text);
  if (!spec) return fail(spec.error(), kExitInternal);
  if (spec->command.empty() || spec->nproc < 1) {
    return fail(
        make_error(Errc::kInvalidArgument, "the job description has no command or no workers"),
        kExitInternal);
  }
  if (spec->dry_run) return agent::print_dry_run(*spec);
  block_signals(spec->checkpoint_signal);
  if (!spec->rdzv_token.empty() || spec->tls.any()) {
    if (const auto crypto = auth::CryptoLibrary::load(); !crypto) {
      return fail(crypto.error(), kExitInternal);
    }
  }
  if (spec->tls.any()) {
    auto tls = net::TlsContext::create(spec->tls);
    if (!tls) return fail(tls.error(), kExitInvalidValue);
    start.tls = std::move(*tls);
  }
  start.spec = std::move(*spec);
  job_fd.reset();

  asio::io_context io(1);
  agent::AgentShell shell(io, std::move(start));
  return shell.run();
}
