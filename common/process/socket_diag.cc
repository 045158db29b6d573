#include "common/process/socket_diag.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ddp {
namespace {

constexpr std::uint32_t kAnyCookie = 0xFFFF'FFFF;

void set_end(const sockaddr_storage& from, in6_addr& address, in_port_t& port) {
  if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    std::memcpy(&address, &v4.sin_addr, sizeof(v4.sin_addr));
    port = v4.sin_port;
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
    address = v6.sin6_addr;
    port = v6.sin6_port;
  }
}

// From ::ffff:a.b.c.d to a.b.c.d.
void unmap(in6_addr& address) {
  in6_addr v4{};
  std::memcpy(&v4, address.s6_addr + 12, sizeof(in_addr));
  address = v4;
}

std::size_t address_bytes(int family) {
  return family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
}

template <typename Body>
std::string with_header(std::uint16_t type, std::uint32_t number, const Body& body,
                        std::string_view rest = {}) {
  nlmsghdr header{};
  header.nlmsg_len = static_cast<std::uint32_t>(NLMSG_LENGTH(sizeof(body)) + rest.size());
  header.nlmsg_type = type;
  header.nlmsg_flags = NLM_F_REQUEST;
  header.nlmsg_seq = number;
  std::string bytes(NLMSG_LENGTH(sizeof(body)), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + NLMSG_HDRLEN, &body, sizeof(body));
  return bytes.append(rest);
}

template <typename Value>
std::string attribute(std::uint16_t type, const Value& value, std::size_t size = sizeof(Value)) {
  const rtattr header{static_cast<std::uint16_t>(RTA_LENGTH(size)), type};
  std::string bytes(RTA_SPACE(size), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + RTA_LENGTH(0), &value, size);
  return bytes;
}

// The body of an answer of this type; otherwise why there is none.
template <typename Body>
Result<Body> body_of(std::string_view bytes, std::uint16_t type, std::uint32_t number) {
  nlmsghdr header{};
  if (bytes.size() < NLMSG_HDRLEN) return make_error(Errc::kProtocol, "a short netlink message");
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes.remove_prefix(NLMSG_HDRLEN);
  if (header.nlmsg_seq != number) return make_error(Errc::kStale, "an answer to another question");
  nlmsgerr failure{};
  if (header.nlmsg_type == NLMSG_ERROR && bytes.size() >= sizeof(failure)) {
    std::memcpy(&failure, bytes.data(), sizeof(failure));
    return make_error(failure.error == -ENOENT ? Errc::kNotFound : Errc::kIo, "{}",
                      std::generic_category().message(-failure.error));
  }
  Body body{};
  if (header.nlmsg_type != type || bytes.size() < sizeof(body))
    return make_error(Errc::kProtocol, "a netlink message of another kind");
  std::memcpy(&body, bytes.data(), sizeof(body));
  return body;
}

}  // namespace

std::optional<TcpEnds> tcp_ends(const sockaddr_storage& local, const sockaddr_storage& remote) {
  const int family = local.ss_family;
  if (family != remote.ss_family || (family != AF_INET && family != AF_INET6)) return {};
  TcpEnds ends;
  ends.family = family;
  set_end(local, ends.local, ends.local_port);
  set_end(remote, ends.remote, ends.remote_port);
  if (family == AF_INET) return ends;
  ends.interface = reinterpret_cast<const sockaddr_in6&>(remote).sin6_scope_id;
  if (IN6_IS_ADDR_V4MAPPED(&ends.remote)) {
    ends.family = AF_INET;
    unmap(ends.local);
    unmap(ends.remote);
  }
  return ends;
}

TcpEnds other_way(const TcpEnds& ends) {
  TcpEnds other = ends;
  std::swap(other.local, other.remote);
  std::swap(other.local_port, other.remote_port);
  return other;
}

bool is_loopback(const TcpEnds& ends) {
  if (ends.family == AF_INET) return ends.remote.s6_addr[0] == 127;
  return IN6_IS_ADDR_LOOPBACK(&ends.remote);
}

std::string socket_query(const TcpEnds& ends, std::uint32_t number) {
  inet_diag_req_v2 query{};
  query.sdiag_family = static_cast<std::uint8_t>(ends.family);
  query.sdiag_protocol = IPPROTO_TCP;
  query.idiag_states = ~0U;
  query.id.idiag_sport = ends.local_port;
  query.id.idiag_dport = ends.remote_port;
  std::memcpy(query.id.idiag_src, &ends.local, sizeof(ends.local));
  std::memcpy(query.id.idiag_dst, &ends.remote, sizeof(ends.remote));
  query.id.idiag_if = ends.interface;
  query.id.idiag_cookie[0] = query.id.idiag_cookie[1] = kAnyCookie;
  return with_header(SOCK_DIAG_BY_FAMILY, number, query);
}

Result<FoundSocket> socket_answer(std::string_view bytes, std::uint32_t number) {
  const auto answer = body_of<inet_diag_msg>(bytes, SOCK_DIAG_BY_FAMILY, number);
  if (!answer) return answer.error();
  return FoundSocket{answer->idiag_state, answer->idiag_uid, answer->idiag_inode};
}

std::string route_query(const TcpEnds& ends, std::uint32_t number) {
  const std::size_t size = address_bytes(ends.family);
  rtmsg query{};
  query.rtm_family = static_cast<std::uint8_t>(ends.family);
  query.rtm_dst_len = static_cast<std::uint8_t>(8 * size);
  std::string more = attribute(RTA_DST, ends.remote, size);
  if (ends.interface != 0) more += attribute(RTA_OIF, ends.interface);
  return with_header(RTM_GETROUTE, number, query, more);
}

Result<bool> route_answer(std::string_view bytes, std::uint32_t number) {
  const auto answer = body_of<rtmsg>(bytes, RTM_NEWROUTE, number);
  if (!answer) return answer.error();
  return answer->rtm_type == RTN_LOCAL;
}

}  // namespace ddp
