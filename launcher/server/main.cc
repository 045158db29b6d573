// ddp-rendezvous: the store and the rendezvous coordinator on one port, alone.
#include <sys/resource.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

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

int refuse(int exit_code, const std::string& reason) {
  say(stderr, fmt::format("ddp-rendezvous: {}\n", reason));
  return exit_code;
}

// Why the socket could not be had.
int refuse(const ddp::Error& error) {
  if (error.code == ddp::Errc::kExists) return refuse(ddp::kExitPortInUse, error.message);
  if (error.code == ddp::Errc::kInvalidArgument) {
    return refuse(ddp::kExitInvalidValue, "--bind: " + error.message);
  }
  return refuse(ddp::kExitInternal, error.message);
}

int serve(const ddp::server::ServerOptions& server_options) {
  raise_descriptor_limit();
  asio::io_context io(1);
  asio::signal_set signals(io, SIGINT, SIGTERM);
  auto server = ddp::server::Server::listen(io, server_options);
  if (!server) {
    return refuse(server.error());
  }
  signals.async_wait([&](const std::error_code& error, int) {
    if (!error) io.stop();
  });
  say(stdout, fmt::format("listening on {}\n", (*server)->endpoint()));
  io.run();
  server->reset();
  return ddp::kExitSuccess;
}

std::optional<int> parse_port(const std::string& text) {
  int port = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && port >= 0 && port <= 65535 ? std::optional(port) : std::nullopt;
}

struct CommandLine {
  std::string port = "29400";
  std::string bind;
  std::vector<std::string> extra;
  options::variables_map values;
};

options::options_description visible_flags(CommandLine& line) {
  options::options_description flags(
      "ddp-rendezvous: TCP store and rendezvous coordinator on one port");
  flags.add_options()("port", options::value(&line.port)->default_value(line.port),
                      "TCP port; 0 takes any free one and prints it")(
      "bind", options::value(&line.bind)->value_name("ADDR"),
      "numeric address to listen on (default: all)")("version", "print the version")("help,h",
                                                                                     "print this");
  return flags;
}

// Throws options::error.
void parse(int argc, char** argv, CommandLine& line) {
  options::options_description all;
  all.add(visible_flags(line)).add_options()("extra", options::value(&line.extra));
  options::positional_options_description positional;
  positional.add("extra", -1);
  const int style =
      options::command_line_style::default_style & ~options::command_line_style::allow_guessing;
  options::store(options::command_line_parser(argc, argv)
                     .options(all)
                     .positional(positional)
                     .style(style)
                     .run(),
                 line.values);
  options::notify(line.values);
}

int run(int argc, char** argv) {
  CommandLine line;
  try {
    parse(argc, argv, line);
  } catch (const options::error& error) {
    return refuse(ddp::kExitUsage, fmt::format("{}; --help lists the flags", error.what()));
  }
  if (!line.extra.empty()) {
    return refuse(ddp::kExitUsage,
                  fmt::format("unexpected argument '{}'; --help lists the flags", line.extra[0]));
  }
  if (line.values.contains("help")) {
    std::ostringstream text;
    text << visible_flags(line);
    say(stdout, text.str());
    return ddp::kExitSuccess;
  }
  if (line.values.contains("version")) {
    say(stdout, fmt::format("ddp-rendezvous {}\n", DDP_VERSION));
    return ddp::kExitSuccess;
  }
  const std::optional<int> port = parse_port(line.port);
  if (!port) {
    return refuse(ddp::kExitInvalidValue,
                  fmt::format("--port {}: a port is a number from 0 to 65535", line.port));
  }
  ddp::server::ServerOptions server_options;
  server_options.port = *port;
  server_options.bind_address = line.bind;
  return serve(server_options);
}

}  // namespace

int main(int argc, char** argv) {
  ddp::log::init("ddp-rendezvous", "");
  return run(argc, argv);
}
