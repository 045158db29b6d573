#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "common/net/byte_stream.h"
#include "launcher/rendezvous/store_core.h"

namespace ddp::server {

// The store's connections: bytes into StoreCore, its answers out. A client that does not read its
// answers is not read from either. On the thread of the streams.
class StoreFront {
 public:
  StoreFront();
  ~StoreFront();  // Closes every connection.
  StoreFront(const StoreFront&) = delete;
  StoreFront& operator=(const StoreFront&) = delete;

  // A connection whose first bytes, `received`, are no other protocol's.
  void adopt(const std::shared_ptr<net::ByteStream>& stream, std::string_view received);
  // An empty store; the connections of the old one are closed.
  void reset();

  std::size_t num_connections() const { return sessions_.size(); }
  std::size_t num_keys() const { return core_->num_keys(); }
  std::uint64_t num_requests() const { return requests_; }

 private:
  class Session;
  void forget(std::uint64_t id);
  void close_all();

  std::unique_ptr<rendezvous::StoreCore> core_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Session>> sessions_;
  rendezvous::StoreCore::Effects effects_;  // Reused, so that a request costs no allocation.
  std::uint64_t next_id_ = 1;
  std::uint64_t requests_ = 0;
};

}  // namespace ddp::server
