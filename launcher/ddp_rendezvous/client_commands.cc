#include "launcher/ddp_rendezvous/client_commands.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "common/auth/crypto_library.h"
#include "common/auth/handshake.h"
#include "common/base/exit_codes.h"
#include "common/base/host_and_port.h"
#include "common/config/rdzv_token.h"
#include "common/store/endpoint.h"
#include "common/store/socket.h"
#include "common/store/tcp_store.h"

namespace ddp::rendezvous_client {
namespace {

using Words = std::vector<std::string>;

constexpr int kDefaultPort = 29'400;
constexpr std::chrono::milliseconds kConnectLimit{1'500};
constexpr std::chrono::milliseconds kDefaultWait{300'000};
constexpr double kMaxSeconds = 1e6;

struct Command;
struct CommandLine {
  const Command* command = nullptr;
  StoreEndpoint endpoint;
  Words operands;  // Behind HOST:PORT.
  std::optional<std::chrono::milliseconds> timeout;
  Secret token{};
  bool help = false;
};
// The text to print.
using Run = Result<std::string> (*)(Store& store, const CommandLine& line);

struct Command {
  std::string_view name;
  const char* operands;
  std::size_t least, most;
  bool waits;  // Has --timeout.
  Run run;
  const char* help;
};

Result<std::string> run_get(Store& store, const CommandLine& line) {
  return store.get(line.operands[0], line.timeout.value_or(Store::kDoNotWait));
}

Result<std::string> run_set(Store& store, const CommandLine& line) {
  std::string value = line.operands[1];
  if (value == "-") {
    value.clear();
    std::array<char, 65'536> bytes{};
    while (const std::size_t count = std::fread(bytes.data(), 1, bytes.size(), stdin)) {
      value.append(bytes.data(), count);
    }
  }
  if (Result<void> done = store.set(line.operands[0], value); !done) return done.error();
  return std::string();
}

Result<std::string> run_add(Store& store, const CommandLine& line) {
  const std::string& text = line.operands[1];
  std::int64_t delta = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), delta);
  if (error != std::errc() || end != text.data() + text.size()) {
    return make_error(Errc::kInvalidArgument, "'{}' is not a whole number that can be added", text);
  }
  const Result<std::int64_t> sum = store.add(line.operands[0], delta);
  if (!sum) return sum.error();
  return fmt::format("{}\n", *sum);
}

Result<std::string> run_wait(Store& store, const CommandLine& line) {
  if (Result<void> done = store.wait(line.operands, line.timeout.value_or(kDefaultWait)); !done) {
    return done.error();
  }
  return std::string();
}

Result<std::string> run_keys(Store& store, const CommandLine& line) {
  Result<Words> keys = store.list_keys();
  if (!keys) return keys.error();
  std::sort(keys->begin(), keys->end());
  std::string text;
  for (const std::string& key : *keys) {
    if (line.operands.empty() || key.starts_with(line.operands[0])) text += key + "\n";
  }
  return text;
}

Result<std::string> run_del(Store& store, const CommandLine& line) {
  const Result<bool> there = store.delete_key(line.operands[0]);
  if (!there) return there.error();
  if (*there) return std::string();
  return make_error(Errc::kNotFound, "there is no key '{}'", line.operands[0]);
}

constexpr std::array<Command, 6> kCommands{{
    {"get", "KEY", 1, 1, true, run_get,
     "print the value's bytes; waits for the key only with --timeout"},
    {"set", "KEY VALUE", 2, 2, false, run_set, "set the value; - reads it from standard input"},
    {"add", "KEY NUMBER", 2, 2, false, run_add,
     "add to the number under the key and print the sum"},
    {"wait", "KEY...", 1, 1'000, true, run_wait, "wait until all keys are there"},
    {"keys", "[PREFIX]", 0, 1, false, run_keys, "print the keys, one per line, sorted"},
    {"del", "KEY", 1, 1, false, run_del, "delete the value"},
}};

std::string usage(const Command& command) {
  return fmt::format("ddp-rendezvous {}{} HOST[:PORT] {}", command.name,
                     command.waits ? " [--timeout SECONDS]" : "", command.operands);
}

std::string help() {
  std::string text = "A client of any c10d TCP store, ours or PyTorch's (default port 29400):\n";
  for (const Command& command : kCommands) {
    text += fmt::format("  {}\n      {}\n", usage(command), command.help);
  }
  return text +
         fmt::format(
             "Write keys as programs do: the \"/\" that PyTorch puts in front is added here.\n"
             "--rdzv-token-file FILE, or DDP_RDZV_TOKEN: the job's secret, for a daemon that\n"
             "has one and does not let this machine in without it.\n"
             "--timeout: how long to wait for keys (default: get 0, wait {}).\n"
             "Everything after -- is a key or a value.\n"
             "Exit status: 0 done, {} a key does not exist (in time), {} no store answers,\n"
             "{} the connection was lost, {} the token is wrong, {} a wrong value, {} a wrong "
             "command line.\n",
             kDefaultWait.count() / 1'000, int{kExitKeyMissing}, int{kExitJoinTimeout},
             int{kExitCoordinatorLost}, int{kExitRefused}, int{kExitInvalidValue}, int{kExitUsage});
}

int refuse(const Command& command, int exit_code, const std::string& reason) {
  std::fputs(fmt::format("ddp-rendezvous {}: {}\n", command.name, reason).c_str(), stderr);
  return exit_code;
}

std::optional<std::chrono::milliseconds> parse_seconds(std::string_view text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(seconds >= 0 && seconds <= kMaxSeconds)) return std::nullopt;
  return std::chrono::milliseconds(std::llround(seconds * 1'000));
}

// Reads the token from the file or, without one, from the environment.
std::optional<int> read_token(const Command& command, const std::optional<std::string>& file,
                              Secret& out) {
  const char* const variable = std::getenv(config::kTokenVariable);
  if (!file && (variable == nullptr || *variable == '\0')) return std::nullopt;
  Result<Secret> token = file ? config::read_token_file(*file) : config::parse_token(variable);
  if (!token) {
    return refuse(command, kExitInvalidValue,
                  fmt::format("{} {}", file ? "--rdzv-token-file" : config::kTokenVariable,
                              token.error().message));
  }
  out = std::move(*token);
  if (const auto crypto = auth::CryptoLibrary::load(); !crypto) {
    return refuse(command, kExitInternal, crypto.error().message);
  }
  return std::nullopt;
}

// Mutual proof that both sides know the token.
Result<void> introduce(Socket& socket, const Secret& token, TimePoint deadline) {
  auth::ClientHandshake handshake(token, {auth::Purpose::kStoreClient, ""}, auth::random_nonce());
  Result<void> written = socket.write_all(handshake.hello(), deadline);
  while (written && !handshake.done()) {
    const Result<std::string> byte = socket.read_exactly(1, deadline);
    if (!byte) return byte.error();
    const Result<std::string> answer = handshake.receive(*byte);
    if (!answer) return answer.error();
    written = socket.write_all(*answer, deadline);
  }
  return written;
}

// Gives the exit status if the line is wrong. Numbers may be negative, so only words that begin
// with -- are flags.
std::optional<int> parse(const Words& words, CommandLine& line) {
  const Command& command = *line.command;
  bool flags_over = false;
  Words plain;
  std::optional<std::string> token_file;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (flags_over || !word.starts_with("--")) {
      if (!flags_over && word == "-h") line.help = true;
      plain.emplace_back(word);
    } else if (word == "--") {
      flags_over = true;
    } else if (word == "--help") {
      line.help = true;
    } else if (word == "--rdzv-token-file" || word.starts_with("--rdzv-token-file=")) {
      const bool apart = word == "--rdzv-token-file";
      if (apart && i + 1 == words.size()) {
        return refuse(command, kExitUsage, "--rdzv-token-file lacks its value; " + usage(command));
      }
      token_file = apart ? words[++i] : std::string(word.substr(word.find('=') + 1));
    } else if (command.waits && (word == "--timeout" || word.starts_with("--timeout="))) {
      const bool apart = word == "--timeout";
      if (apart && i + 1 == words.size()) {
        return refuse(command, kExitUsage, "--timeout lacks its value; " + usage(command));
      }
      const std::string value = apart ? words[++i] : std::string(word.substr(10));
      line.timeout = parse_seconds(value);
      if (!line.timeout) {
        return refuse(command, kExitInvalidValue,
                      fmt::format("--timeout {}: expected seconds from 0 to 1000000", value));
      }
    } else {
      return refuse(
          command, kExitUsage,
          fmt::format("unknown flag '{}' (-- makes it a key or value); {}", word, usage(command)));
    }
  }
  if (line.help) return std::nullopt;
  if (plain.empty() || plain.size() - 1 < command.least || plain.size() - 1 > command.most) {
    return refuse(command, kExitUsage, "expected: " + usage(command));
  }
  Result<StoreEndpoint> endpoint = parse_store_endpoint(plain[0], kDefaultPort);
  if (!endpoint) return refuse(command, kExitInvalidValue, endpoint.error().message);
  line.endpoint = *endpoint;
  line.operands.assign(plain.begin() + 1, plain.end());
  return read_token(command, token_file, line.token);
}

int refuse(const CommandLine& line, const Error& error) {
  const Command& command = *line.command;
  if (error.code == Errc::kTimeout || error.code == Errc::kNotFound) {
    return refuse(
        command, kExitKeyMissing,
        fmt::format("{}; 'ddp-rendezvous keys {}' lists what is{}", error.message,
                    host_and_port(line.endpoint.host, line.endpoint.port),
                    command.waits && !line.timeout ? ", --timeout SECONDS waits for it" : ""));
  }
  if (error.code == Errc::kInvalidArgument) {
    return refuse(command, kExitInvalidValue, error.message);
  }
  return refuse(command, kExitCoordinatorLost, error.message);
}

int run(const CommandLine& line) {
  TcpStoreOptions options;
  options.timeout = kConnectLimit;
  if (!line.token.empty()) {
    options.introduce = [&line](Socket& socket, TimePoint deadline) {
      return introduce(socket, line.token, deadline);
    };
  }
  auto store = connect_tcp_store(line.endpoint.host, line.endpoint.port, options);
  if (!store && store.error().code == std::errc::permission_denied) {
    return refuse(*line.command, kExitRefused, store.error().message);
  }
  if (!store) {
    return refuse(*line.command, kExitJoinTimeout,
                  store.error().message + "; is ddp-rendezvous or a job running there?");
  }
  const Result<std::string> text = line.command->run(**store, line);
  if (!text) return refuse(line, text.error());
  std::fwrite(text->data(), 1, text->size(), stdout);
  return std::fflush(stdout) == 0 ? kExitSuccess : kExitInternal;
}

}  // namespace

std::optional<int> run_client_command(int argc, char** argv) {
  if (argc < 2) return std::nullopt;
  const auto command = std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& one) {
    return one.name == std::string_view(argv[1]);
  });
  if (command == kCommands.end()) return std::nullopt;
  CommandLine line;
  line.command = &*command;
  if (const auto status = parse(Words(argv + 2, argv + argc), line)) return status;
  if (!line.help) return run(line);
  std::fputs(help().c_str(), stdout);
  return kExitSuccess;
}

}  // namespace ddp::rendezvous_client
