// ddp-rendezvous: the store and the rendezvous coordinator on one port, alone.
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <sstream>
#include <string>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "common/log/log.h"
#include "launcher/server/server.h"

namespace {

namespace options = boost::program_options;

// Every worker and agent holds connections; the usual soft limit of 1024 is soon reached.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A reader that has gone is no reason to fail.
void say(std::FILE* stream, const std::string& text) {
  std::fputs(text.c_str(), stream);
  std::fflush(stream);
}

int exit_code_of(const ddp::Error& error) {
  if (error.code == ddp::Errc::kExists) return ddp::kExitPortInUse;
  if (error.code == ddp::Errc::kInvalidArgument) return ddp::kExitInvalidValue;
  return ddp::kExitInternal;
}

int serve(const ddp::server::ServerOptions& server_options) {
  raise_descriptor_limit();
  asio::io_context io(1);
  asio::signal_set signals(io, SIGINT, SIGTERM);
  auto server = ddp::server::Server::listen(io, server_options);
  if (!server) {
    say(stderr, fmt::format("ddp-rendezvous: {}\n", server.error().message));
    return exit_code_of(server.error());
  }
  signals.async_wait([&](const std::error_code& error, int) {
    if (!error) io.stop();
  });
  say(stdout, fmt::format("listening on {}\n", (*server)->endpoint()));
  io.run();
  server->reset();
  return ddp::kExitSuccess;
}

int run(int argc, char** argv) {
  ddp::server::ServerOptions server_options;
  options::options_description flags(
      "ddp-rendezvous: TCP store and rendezvous coordinator on one port");
  flags.add_options()("port", options::value(&server_options.port)->default_value(29400),
                      "TCP port; 0 takes any free one and prints it")(
      "bind", options::value(&server_options.bind_address)->value_name("ADDR"),
      "numeric address to listen on (default: all)")("version", "print the version")("help,h",
                                                                                     "print this");
  options::variables_map values;
  try {
    options::store(options::command_line_parser(argc, argv)
                       .options(flags)
                       .positional(options::positional_options_description())
                       .style(options::command_line_style::default_style &
                              ~options::command_line_style::allow_guessing)
                       .run(),
                   values);
    options::notify(values);
  } catch (const options::validation_error& error) {
    say(stderr, fmt::format("ddp-rendezvous: {}\n", error.what()));
    return ddp::kExitInvalidValue;
  } catch (const options::error& error) {
    say(stderr, fmt::format("ddp-rendezvous: {}; --help lists the flags\n", error.what()));
    return ddp::kExitUsage;
  }
  if (values.contains("help")) {
    std::ostringstream text;
    text << flags;
    say(stdout, text.str());
    return ddp::kExitSuccess;
  }
  if (values.contains("version")) {
    say(stdout, fmt::format("ddp-rendezvous {}\n", DDP_VERSION));
    return ddp::kExitSuccess;
  }
  return serve(server_options);
}

}  // namespace

int main(int argc, char** argv) {
  ddp::log::init("ddp-rendezvous", "");
  return run(argc, argv);
}
