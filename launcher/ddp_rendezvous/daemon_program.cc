#include "launcher/ddp_rendezvous/daemon_program.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <variant>

#include <asio/error.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/signal_set.hpp>
#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "common/base/host_port.h"
#include "common/config/rdzv_token.h"
#include "common/log/log.h"
#include "common/process/descriptor_limit.h"
#include "launcher/ddp_rendezvous/client_commands.h"
#include "launcher/server/daemon_flags.h"
#include "launcher/server/memory_keeper.h"
#include "launcher/server/server.h"

namespace ddp::daemon {
namespace {

using namespace ddp::server;  // NOLINT(google-build-using-namespace): this is its program.

// Errors are ignored: a reader that is gone must not end the daemon.
void say(std::FILE* stream, const std::string& text) {
  std::fputs(text.c_str(), stream);
  std::fflush(stream);
}

int refuse(int exit_code, const std::string& reason) {
  say(stderr, fmt::format("ddp-rendezvous: {}\n", reason));
  return exit_code;
}

// The error of Server::listen() as an exit status.
int refuse(const Error& error) {
  if (error.code == Errc::kExists) return refuse(kExitPortInUse, error.message);
  if (error.code == Errc::kInvalidArgument) {
    return refuse(kExitInvalidValue, "--bind: " + error.message);
  }
  return refuse(kExitInternal, error.message);
}

// The descriptor stays blocking, because other processes share it. epoll refuses files and
// /dev/null, but reading those never blocks.
void stop_at_eof(asio::io_context& io, asio::posix::stream_descriptor& input) {
  input.async_wait(asio::posix::stream_descriptor::wait_read, [&](const std::error_code& error) {
    std::array<char, 4'096> ignored{};
    if (error && error != asio::error::operation_not_supported) return;
    const ssize_t count = ::read(input.native_handle(), ignored.data(), ignored.size());
    if (count > 0 || (count < 0 && errno == EINTR)) return stop_at_eof(io, input);
    io.stop();
  });
}

int serve(const DaemonFlags& flags) {
  ::signal(SIGPIPE, SIG_IGN);  // Nor must a reader of its log that is gone.
  asio::io_context io(1);
  asio::signal_set signals(io, SIGINT, SIGTERM);
  auto server = Server::listen(io, flags.server);
  if (!server) return refuse(server.error());
  signals.async_wait([&](const std::error_code& error, int) {
    if (!error) io.stop();
  });
  asio::posix::stream_descriptor input(io);
  if (flags.until_eof) {
    input.assign(::dup(STDIN_FILENO));
    stop_at_eof(io, input);
  }
  if (flags.server.token.empty() && !flags.server.tls && !is_loopback(flags.server.bind_address)) {
    say(stderr,
        "ddp-rendezvous: anybody who reaches this port can join jobs and write to the store; to "
        "let in only the jobs' nodes, give --rdzv-token-file FILE or DDP_RDZV_TOKEN to this daemon "
        "and to them (`openssl rand -hex 32` makes one), or serve only this machine with --bind "
        "127.0.0.1\n");
  }
  say(stdout, fmt::format("listening on {}\n", (*server)->endpoint()));
  {
    const MemoryKeeper memory(io);
    io.run();
  }
  server->reset();
  return kExitSuccess;
}

}  // namespace

int run_daemon_program(int argc, char** argv) {
  if (const std::optional<int> status = run_client_command(argc, argv)) return *status;
  log::init("ddp-rendezvous");
  const DaemonCommand command = read_daemon_flags(argc, argv, raise_descriptor_limit());
  config::forget_token_variable();
  if (const auto* const refusal = std::get_if<Refusal>(&command)) {
    return refuse(refusal->exit_code, refusal->reason);
  }
  if (const auto* const print = std::get_if<PrintText>(&command)) {
    say(stdout, print->text);
    return kExitSuccess;
  }
  return serve(std::get<DaemonFlags>(command));
}

}  // namespace ddp::daemon
