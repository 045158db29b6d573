#include "launcher/ddp_rendezvous/client_commands.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "common/base/host_port.h"
#include "common/store/tcp_store.h"

namespace ddp::daemon {
namespace {

namespace options = boost::program_options;

constexpr int kDefaultPort = 29'400;
constexpr std::chrono::milliseconds kConnectLimit{1'500};
constexpr double kMaxSeconds = 1e6;

constexpr std::string_view kUsage =
    "A client of any c10d TCP store, ours or PyTorch's (default port 29400):\n"
    "  ddp-rendezvous get [--timeout SECONDS] HOST[:PORT] KEY\n"
    "      print the value's bytes; waits for the key only with --timeout\n"
    "  ddp-rendezvous keys HOST[:PORT] [PREFIX]\n"
    "      print the keys, one per line, sorted\n"
    "Write keys as programs do: the \"/\" that PyTorch puts in front is added here.\n"
    "Everything after -- is a key. A daemon with a token lets in only its job's nodes.\n";

struct CommandLine {
  std::string command;
  std::vector<std::string> words;  // HOST[:PORT] and, if it is there, the key or the prefix.
  double timeout = 0;              // Seconds.
  bool help = false;

  bool is_get() const { return command == "get"; }
};

int refuse(const CommandLine& line, int exit_code, const std::string& reason) {
  std::fputs(fmt::format("ddp-rendezvous {}: {}\n", line.command, reason).c_str(), stderr);
  return exit_code;
}

// Throws options::error.
void parse(const std::vector<std::string>& arguments, CommandLine& line) {
  options::options_description flags;
  flags.add_options()("help,h", options::bool_switch(&line.help))("words",
                                                                  options::value(&line.words));
  if (line.is_get()) flags.add_options()("timeout", options::value(&line.timeout));
  options::positional_options_description positional;
  positional.add("words", -1);
  const int style =
      options::command_line_style::default_style & ~options::command_line_style::allow_guessing;
  options::variables_map given;
  options::store(options::command_line_parser(arguments)
                     .options(flags)
                     .positional(positional)
                     .style(style)
                     .run(),
                 given);
  options::notify(given);
}

Result<std::string> get(Store& store, const CommandLine& line) {
  return store.get(line.words[1], std::chrono::milliseconds(std::llround(line.timeout * 1'000)));
}

Result<std::string> list_keys(Store& store, const CommandLine& line) {
  Result<std::vector<std::string>> keys = store.list_keys();
  if (!keys) return keys.error();
  std::sort(keys->begin(), keys->end());
  std::string text;
  for (const std::string& key : *keys) {
    if (line.words.size() == 1 || key.starts_with(line.words[1])) text += key + "\n";
  }
  return text;
}

int refuse(const CommandLine& line, const HostPort& endpoint, const Error& error) {
  if (error.code == Errc::kTimeout) {
    return refuse(line, kExitKeyMissing,
                  fmt::format("{}; 'ddp-rendezvous keys {}' lists what is, --timeout SECONDS waits "
                              "for it",
                              error.message, host_and_port(endpoint.host, endpoint.port)));
  }
  const bool is_wrong = error.code == Errc::kInvalidArgument;
  return refuse(line, is_wrong ? kExitInvalidValue : kExitCoordinatorLost, error.message);
}

int run(const CommandLine& line) {
  const std::size_t most = 2;
  const std::size_t least = line.is_get() ? 2 : 1;
  if (line.words.size() < least || line.words.size() > most)
    return refuse(line, kExitUsage, "expected: HOST[:PORT] and a key; --help says more");
  if (!(line.timeout >= 0 && line.timeout <= kMaxSeconds))
    return refuse(line, kExitInvalidValue, "--timeout: expected seconds from 0 to 1000000");
  const Result<HostPort> endpoint = parse_host_port(line.words[0], 1, kDefaultPort);
  if (!endpoint) {
    return refuse(
        line, kExitInvalidValue,
        fmt::format("'{}': {}; write HOST or HOST:PORT, for example node0:29400 or [fd00::1]:29400",
                    line.words[0], endpoint.error().message));
  }
  const auto store = connect_tcp_store(endpoint->host, endpoint->port, kConnectLimit);
  if (!store) {
    return refuse(line, kExitJoinTimeout,
                  store.error().message + "; is ddp-rendezvous or a job running there?");
  }
  const Result<std::string> text = line.is_get() ? get(**store, line) : list_keys(**store, line);
  if (!text) return refuse(line, *endpoint, text.error());
  const bool is_whole = std::fwrite(text->data(), 1, text->size(), stdout) == text->size();
  return std::fflush(stdout) == 0 && is_whole ? kExitSuccess : kExitInternal;
}

}  // namespace

std::optional<int> run_client_command(int argc, char** argv) {
  if (argc < 2) return std::nullopt;
  CommandLine line;
  line.command = argv[1];
  if (line.command != "get" && line.command != "keys") return std::nullopt;
  try {
    parse({argv + 2, argv + argc}, line);
  } catch (const options::invalid_option_value& error) {
    return refuse(line, kExitInvalidValue, error.what());
  } catch (const options::error& error) {
    return refuse(line, kExitUsage, fmt::format("{}; --help says more", error.what()));
  }
  if (!line.help) return run(line);
  std::fputs(kUsage.data(), stdout);
  return kExitSuccess;
}

}  // namespace ddp::daemon
