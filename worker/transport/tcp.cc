#include "worker/transport/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <random>
#include <string_view>

#include "worker/transport/tcp_sockets.h"

namespace ddp {
namespace {

constexpr std::uint32_t kPreambleMagic = 0x4C504444;  // "DDPL"
constexpr std::uint32_t kPreambleVersion = 1;
enum Purpose : std::uint32_t { kData = 0, kControl = 1 };
constexpr std::byte kAccepted{0xA5};
constexpr std::chrono::seconds kAddressTime{10};  // For one of several addresses.

// First bytes of whoever connects; the listener answers kAccepted or closes. Little-endian.
struct Preamble {
  std::uint32_t magic = kPreambleMagic;
  std::uint32_t version = kPreambleVersion;
  std::uint64_t token = 0;
  std::int64_t round = kNoRound;
  std::int32_t world_size = 0;
  std::int32_t connecting = -1;
  std::int32_t listening = -1;
  std::uint32_t purpose = kData;
};
static_assert(sizeof(Preamble) == 40);

Preamble make_preamble(const LinkIdentity& identity, std::uint64_t token, Purpose purpose) {
  Preamble preamble;
  preamble.token = token;
  preamble.round = identity.round;
  preamble.world_size = identity.world_size;
  preamble.connecting = identity.connecting;
  preamble.listening = identity.listening;
  preamble.purpose = purpose;
  return preamble;
}

struct Endpoint {
  std::vector<std::string> addresses;
  int port = 0;
  std::uint64_t token = 0;
};

template <typename Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// "ADDRESS,ADDRESS;PORT;TOKEN"
Result<Endpoint> parse_endpoint(const std::string& text) {
  const std::size_t first = text.find(';');
  const std::size_t second = first == std::string::npos ? first : text.find(';', first + 1);
  Endpoint endpoint;
  if (second == std::string::npos ||
      !parse_number(std::string_view(text).substr(first + 1, second - first - 1), endpoint.port) ||
      !parse_number(std::string_view(text).substr(second + 1), endpoint.token)) {
    return make_error(Errc::kProtocol, "'{}' is no endpoint of a worker", text.substr(0, 200));
  }
  for (std::size_t begin = 0; begin < first;) {
    const std::size_t end = std::min(text.find(',', begin), first);
    endpoint.addresses.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return endpoint;
}

// A connection whose preamble is not complete yet.
struct Visitor {
  UniqueFd fd;
  std::array<std::byte, sizeof(Preamble)> bytes{};
  std::size_t received = 0;
};

enum class Visit { kIncomplete, kGone, kComplete };

Visit read_preamble(Visitor& visitor) {
  const ssize_t got = ::recv(visitor.fd.get(), visitor.bytes.data() + visitor.received,
                             visitor.bytes.size() - visitor.received, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Visit::kIncomplete;
  if (got <= 0) return Visit::kGone;
  visitor.received += static_cast<std::size_t>(got);
  return visitor.received == visitor.bytes.size() ? Visit::kComplete : Visit::kIncomplete;
}

Result<UniqueFd> open_connection(const Endpoint& endpoint, const Preamble& preamble,
                                 TimePoint deadline) {
  Error last = make_error(Errc::kInvalidArgument, "it published no address");
  for (const std::string& address : endpoint.addresses) {
    // An address that swallows packets must not use up the time of the others.
    const bool alone = endpoint.addresses.size() == 1;
    const TimePoint limit = alone ? deadline : std::min(deadline, Clock::now() + kAddressTime);
    auto fd = connect_socket(address, endpoint.port, limit);
    if (!fd) {
      last = fd.error();
      continue;
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(&preamble);
    std::byte answer{};
    auto exchanged = send_all(fd->get(), bytes, sizeof(preamble), deadline);
    if (exchanged) exchanged = receive_all(fd->get(), &answer, 1, deadline);
    if (exchanged && answer == kAccepted) return fd;
    last = exchanged
               ? make_error(Errc::kProtocol, "{} gave a wrong answer", address)
               : Error{exchanged.error().code, fmt::format("{} port {}: {}", address, endpoint.port,
                                                           exchanged.error().message)};
  }
  return last;
}

}  // namespace

Result<std::unique_ptr<TcpListener>> TcpListener::open() {
  auto socket = listen_anywhere();
  if (!socket) return socket.error();
  auto port = local_port(socket->get());
  if (!port) return port.error();
  std::random_device random;
  const std::uint64_t token = (static_cast<std::uint64_t>(random()) << 32) | random();
  return std::unique_ptr<TcpListener>(new TcpListener(std::move(*socket), *port, token));
}

std::string TcpListener::endpoint(const std::vector<std::string>& addresses) const {
  return fmt::format("{};{};{}", fmt::join(addresses, ","), port_, token_);
}

Result<std::unique_ptr<Link>> TcpListener::accept(const LinkIdentity& identity,
                                                  TimePoint deadline) {
  const std::array<Preamble, 2> expected = {make_preamble(identity, token_, kData),
                                            make_preamble(identity, token_, kControl)};
  std::array<UniqueFd, 2> found;
  std::vector<Visitor> visitors;
  while (!found[kData] || !found[kControl]) {
    std::vector<pollfd> entries{{fd_.get(), POLLIN, 0}};
    for (const Visitor& visitor : visitors) entries.push_back({visitor.fd.get(), POLLIN, 0});
    const auto left = std::chrono::ceil<Duration>(deadline - Clock::now()).count();
    if (left <= 0) {
      return make_error(Errc::kTimeout, "rank {} on node {} did not connect to rank {}",
                        identity.connecting, identity.connecting_node, identity.listening);
    }
    ::poll(entries.data(), entries.size(), static_cast<int>(std::min<std::int64_t>(left, 1000)));
    if ((entries[0].revents & POLLIN) != 0) {
      if (UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)); fd)
        visitors.push_back({std::move(fd)});
    }
    for (auto visitor = visitors.begin(); visitor != visitors.end();) {
      const Visit visit = read_preamble(*visitor);
      if (visit == Visit::kIncomplete) {
        ++visitor;
        continue;
      }
      for (const Purpose purpose : {kData, kControl}) {
        if (visit != Visit::kComplete || found[purpose] ||
            std::memcmp(visitor->bytes.data(), &expected[purpose], sizeof(Preamble)) != 0) {
          continue;
        }
        if (!send_all(visitor->fd.get(), &kAccepted, 1, deadline)) break;
        found[purpose] = std::move(visitor->fd);
        break;
      }
      visitor = visitors.erase(visitor);
    }
  }
  for (const UniqueFd& fd : found) set_connection_options(fd.get());
  return std::make_unique<Link>(std::move(found[kData]), std::move(found[kControl]),
                                identity.connecting, identity.connecting_node);
}

Result<std::unique_ptr<Link>> connect_link(const std::string& endpoint_text,
                                           const LinkIdentity& identity, TimePoint deadline) {
  auto endpoint = parse_endpoint(endpoint_text);
  if (!endpoint) return endpoint.error();
  std::array<UniqueFd, 2> found;
  for (const Purpose purpose : {kData, kControl}) {
    auto fd =
        open_connection(*endpoint, make_preamble(identity, endpoint->token, purpose), deadline);
    if (!fd) {
      const std::error_code code = fd.error().code;
      return make_error(code, "rank {} cannot connect to rank {} on node {}: {}",
                        identity.connecting, identity.listening, identity.listening_node,
                        fd.error().message);
    }
    set_connection_options(fd->get());
    found[purpose] = std::move(*fd);
  }
  return std::make_unique<Link>(std::move(found[kData]), std::move(found[kControl]),
                                identity.listening, identity.listening_node);
}

}  // namespace ddp
