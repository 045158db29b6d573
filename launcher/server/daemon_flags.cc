#include "launcher/server/daemon_flags.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "common/auth/crypto_library.h"
#include "common/base/exit_codes.h"
#include "common/base/release.h"
#include "common/config/rdzv_token.h"

namespace ddp::server {
namespace {

namespace options = boost::program_options;
using wire::c10d::Dialect;

// Descriptors for other things than connections: standard streams, the listener, epoll, and a spare
// with which a connection over the limit is turned away.
constexpr std::size_t kOwnDescriptors = 32;
constexpr std::uint64_t kMaxBytes = 64ull << 30;

struct Texts {
  std::string port = "29400";
  std::string bind;
  std::string max_connections, max_value_bytes;
  std::string old_clients = "2.0";
  std::string token_file;
  config::TlsFiles tls;
  std::vector<std::string> extra;
  options::variables_map given;
};

options::options_description visible_flags(Texts& texts) {
  const wire::c10d::Limits limits;
  options::options_description flags(
      "ddp-rendezvous: TCP store and rendezvous coordinator on one port.\n"
      "As a client of a store: ddp-rendezvous get|keys (see get --help).\n"
      "Bytes and counts may end in K, M or G (1024, 1024^2, 1024^3)");
  const auto add = [&flags](const char* name, std::string& text, const char* value_name,
                            const std::string& help) {
    auto* const value = options::value(&text)->value_name(value_name);
    if (!text.empty()) value->default_value(text);
    flags.add_options()(name, value, help.c_str());
  };
  add("port", texts.port, "N", "TCP port; 0 takes any free one and prints it");
  add("bind", texts.bind, "ADDR", "numeric address to listen on (default: all, IPv6 and IPv4)");
  add("old-clients", texts.old_clients, "VERSION",
      "the PyTorch release of clients older than 2.2: 1.9 to 2.0, or 2.1. The two delete keys by "
      "different requests, and the daemon cannot tell them apart; it recognises newer clients");
  add("max-connections", texts.max_connections, "N",
      "close a new connection if this many are open (default: as many as the limit of open files "
      "allows)");
  add("max-value-bytes", texts.max_value_bytes, "N",
      fmt::format("longest value (default: {}M)", limits.value_bytes >> 20));
  add("rdzv-token-file", texts.token_file, "FILE",
      "file with the job's secret: only nodes that know it may join. Store clients are let in from "
      "this machine only, and workers through their agents. Only its owner may be able to "
      "read the file (chmod 600). DDP_RDZV_TOKEN in the environment can hold the secret instead");
  add("tls-cert", texts.tls.certificate, "FILE",
      "the daemon's certificate in PEM, which must name the host that nodes connect to. Agents "
      "must then use TLS and show certificates of the same authority. Needs --tls-key and "
      "--tls-ca");
  add("tls-key", texts.tls.key, "FILE", "private key of --tls-cert, without a passphrase");
  add("tls-ca", texts.tls.ca, "FILE",
      "certificate of the authority that signs the nodes' certificates");
  flags.add_options()("any-user",
                      "let in processes of other users of this machine, too, for a daemon that "
                      "several users share; else only this process's user and root are")(
      "until-eof", "end when standard input ends, for a program that starts the daemon")(
      "version", "print the version")("help,h", "print this");
  return flags;
}

// Throws options::error.
void parse(int argc, char** argv, Texts& texts) {
  options::options_description all;
  all.add(visible_flags(texts)).add_options()("extra", options::value(&texts.extra));
  options::positional_options_description positional;
  positional.add("extra", -1);
  const int style =
      options::command_line_style::default_style & ~options::command_line_style::allow_guessing;
  options::store(options::command_line_parser(argc, argv)
                     .options(all)
                     .positional(positional)
                     .style(style)
                     .run(),
                 texts.given);
  options::notify(texts.given);
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit.empty()) return number;
  const std::size_t power = std::string_view("KMG").find(unit.front());
  if (power == std::string_view::npos || unit.size() > 1) return std::nullopt;
  const int shift = static_cast<int>(10 * (power + 1));
  return number << shift >> shift == number ? std::optional(number << shift) : std::nullopt;
}

std::optional<Dialect> parse_version(std::string_view text) {
  for (const std::string_view release : {"1.9", "1.10", "1.11", "1.12", "1.13", "2.0"}) {
    if (text == release) return Dialect::kLegacy;
  }
  return text == "2.1" ? std::optional(Dialect::kInterim) : std::nullopt;
}

// Turns texts into values. refusal() keeps the first error.
class Reader {
 public:
  explicit Reader(const options::variables_map& given) : given_(given) {}

  template <typename Number>
  void number(const char* flag, const std::string& text, std::uint64_t minimum,
              std::uint64_t maximum, Number& out) {
    if (!given_.contains(flag + 2)) return;
    const std::optional<std::uint64_t> value = parse_number(text);
    if (value && *value >= minimum && *value <= maximum) {
      out = static_cast<Number>(*value);
    } else {
      refuse("{} '{}': give a number from {} to {}", flag, text, minimum, maximum);
    }
  }
  template <typename... Args>
  void refuse(fmt::format_string<Args...> format, Args&&... args) {
    if (!refusal_) {
      refusal_ = Refusal{kExitInvalidValue, fmt::format(format, std::forward<Args>(args)...)};
    }
  }
  const std::optional<Refusal>& refusal() const { return refusal_; }

 private:
  const options::variables_map& given_;
  std::optional<Refusal> refusal_;
};

void read_max_connections(Reader& reader, const std::string& text, std::size_t descriptors,
                          std::size_t& out) {
  const std::size_t possible = std::max(descriptors, kOwnDescriptors + 1) - kOwnDescriptors;
  out = possible;
  std::size_t wanted = possible;
  reader.number("--max-connections", text, 1, kMaxBytes, wanted);
  if (wanted > possible) {
    return reader.refuse(
        "--max-connections {}: the limit of open files is {}, which leaves {} for connections; "
        "raise it (`ulimit -Hn`, or LimitNOFILE= of the service), or give a lower number",
        text, descriptors, possible);
  }
  out = wanted;
}

void read_token(Reader& reader, const Texts& texts, Secret& out) {
  const bool has_file = texts.given.contains("rdzv-token-file");
  Result<Secret> token =
      config::find_token(has_file ? std::optional(texts.token_file) : std::nullopt);
  if (!token) return reader.refuse("{}", token.error().message);
  out = std::move(*token);
  if (out.empty()) return;
  if (const auto crypto = auth::CryptoLibrary::load(); !crypto) {
    reader.refuse("{}", crypto.error().message);
  }
}

void read_tls(Reader& reader, const config::TlsFiles& files,
              std::shared_ptr<const net::TlsContext>& out) {
  if (!files.any()) return;
  if (files.certificate.empty() || files.key.empty() || files.ca.empty()) {
    return reader.refuse(
        "--tls-cert, --tls-key and --tls-ca belong together; give all three or none");
  }
  auto tls = net::TlsContext::create(files);
  if (!tls) return reader.refuse("{}", tls.error().message);
  out = std::move(*tls);
}

DaemonCommand values_of(const Texts& texts, std::size_t descriptors) {
  DaemonFlags flags;
  ServerOptions& server = flags.server;
  wire::c10d::Limits& limits = server.store.limits;
  Reader reader(texts.given);
  server.bind_address = texts.bind;
  reader.number("--port", texts.port, 0, 65'535, server.port);
  read_max_connections(reader, texts.max_connections, descriptors, server.max_connections);
  reader.number("--max-value-bytes", texts.max_value_bytes, 1, kMaxBytes, limits.value_bytes);
  // A value must fit into a request and an answer.
  limits.request_bytes = std::max(limits.request_bytes, 2 * limits.value_bytes);
  server.store.max_answer_bytes = std::max(server.store.max_answer_bytes, 4 * limits.value_bytes);
  if (const auto dialect = parse_version(texts.old_clients)) {
    server.store.old_dialect = *dialect;
  } else {
    reader.refuse(
        "--old-clients '{}': give a release from 1.9 to 2.0, or 2.1; newer ones need no flag",
        texts.old_clients);
  }
  read_token(reader, texts, server.token);
  read_tls(reader, texts.tls, server.tls);
  server.any_user = texts.given.contains("any-user");
  flags.until_eof = texts.given.contains("until-eof");
  if (reader.refusal()) return *reader.refusal();
  return flags;
}

}  // namespace

DaemonCommand read_daemon_flags(int argc, char** argv, std::size_t descriptors) {
  Texts texts;
  try {
    parse(argc, argv, texts);
  } catch (const options::error& error) {
    return Refusal{kExitUsage, fmt::format("{}; --help lists the flags", error.what())};
  }
  if (!texts.extra.empty()) {
    return Refusal{kExitUsage, fmt::format("unexpected argument '{}'; --help lists the flags",
                                           texts.extra.front())};
  }
  if (texts.given.contains("help")) {
    std::ostringstream text;
    Texts defaults;
    // Two blanks after the longest flag: help2man finds the descriptions by that.
    constexpr unsigned kColumn = 32;
    visible_flags(defaults).print(text, kColumn);
    return PrintText{text.str()};
  }
  if (texts.given.contains("version")) {
    return PrintText{fmt::format("ddp-rendezvous {}\n", release())};
  }
  return values_of(texts, descriptors);
}

}  // namespace ddp::server
