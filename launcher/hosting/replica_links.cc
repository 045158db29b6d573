#include "launcher/hosting/replica_links.h"

#include <cstddef>

namespace ddp::hosting {
namespace {

// A node that does not answer at once is tried again with the next message after the pause.
constexpr std::chrono::milliseconds kConnectLimit{1'000};
constexpr Duration kPause{100};
constexpr std::size_t kMaxWaiting = 16;
constexpr Duration kUnusedLimit{60'000};

}  // namespace

ReplicaLinks::ReplicaLinks(asio::io_context& io, net::Credentials credentials,
                           std::function<void(const HostPort& peer)> closed)
    : io_(io), credentials_(std::move(credentials)), closed_(std::move(closed)) {}

ReplicaLinks::~ReplicaLinks() {
  *self_ = nullptr;
  for (const auto& [key, link] : links_) {
    if (link.connection) link.connection->close();
  }
}

void ReplicaLinks::send(const HostPort& to, std::string payload) {
  const TimePoint now = Clock::now();
  if (now >= next_look_) forget_unused();
  const Key key{to.host, to.port};
  Link& link = links_[key];
  link.used = now;
  if (link.connection) return link.connection->send(payload);
  if (link.waiting.size() < kMaxWaiting) link.waiting.push_back(std::move(payload));
  if (!link.connecting && now >= link.not_before) connect(key);
}

void ReplicaLinks::connect(const Key& key) {
  links_[key].connecting = true;
  net::FrameConnection::connect(
      io_, key.first, key.second, credentials_, kConnectLimit,
      [self = self_, key](Result<std::shared_ptr<net::FrameConnection>> result) {
        if (*self == nullptr) {
          if (result) (*result)->close();
          return;
        }
        Link& link = (*self)->links_[key];
        link.connecting = false;
        const auto waiting = std::exchange(link.waiting, {});
        if (!result) {
          link.not_before = Clock::now() + kPause;
          return;
        }
        link.connection = *result;
        link.connection->start([](const std::string&) {},
                               [self, key](const Error&) {
                                 if (*self == nullptr) return;
                                 (*self)->links_.erase(key);
                                 (*self)->closed_({.host = key.first, .port = key.second});
                               });
        for (const std::string& payload : waiting) link.connection->send(payload);
      });
}

void ReplicaLinks::forget_unused() {
  const TimePoint now = Clock::now();
  next_look_ = now + kUnusedLimit;
  std::erase_if(links_, [now](const auto& entry) {
    const Link& link = entry.second;
    if (link.connecting || now - link.used < kUnusedLimit) return false;
    if (link.connection) link.connection->close();
    return true;
  });
}

}  // namespace ddp::hosting
