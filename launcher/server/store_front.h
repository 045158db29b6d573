#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "common/net/any_stream.h"
#include "common/wire/c10d.h"
#include "launcher/rendezvous/store_core.h"
#include "launcher/server/log_limit.h"

namespace ddp::server {

struct StoreOptions {
  // The dialect of connections that do not send VALIDATE, until they show another one: kLegacy or
  // kInterim.
  wire::c10d::Dialect old_dialect = wire::c10d::Dialect::kLegacy;
  // Limits of one request. A request that exceeds them closes its connection.
  wire::c10d::Limits limits;
  std::size_t max_answer_bytes = 256u << 20;
};

// What the store holds, and what it has done since it began.
struct StoreFigures {
  std::size_t connections = 0;
  std::size_t waits = 0;  // Clients whose WAIT or BARRIER is not answered yet.
  std::size_t keys = 0;
  std::size_t bytes = 0;  // As StoreCore::num_bytes().
  std::uint64_t received_bytes = 0;
  std::array<std::uint64_t, wire::c10d::kOpCount> requests{};  // By operation.

  std::uint64_t all_requests() const;
};

// The store's connections: passes their bytes to StoreCore and its answers back. If a client does
// not read its answers, no more of its requests are read. If a client sends many requests at once,
// other clients are served in between. On the thread of the streams.
class StoreFront {
 public:
  explicit StoreFront(const StoreOptions& options);
  ~StoreFront();  // Closes every connection.
  StoreFront(const StoreFront&) = delete;
  StoreFront& operator=(const StoreFront&) = delete;

  // Takes a connection whose first bytes, `received`, belong to no other protocol.
  void adopt(const std::shared_ptr<net::Stream>& stream, std::string_view received);
  // Starts with an empty store and closes the connections of the old one.
  void reset();

  std::size_t num_connections() const { return sessions_.size(); }
  StoreFigures figures() const;

 private:
  class Session;
  void forget(std::uint64_t id);
  void close_all();

  StoreOptions options_;
  std::unique_ptr<rendezvous::StoreCore> core_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Session>> sessions_;
  rendezvous::StoreCore::Effects effects_;  // Reused, so that a request costs no allocation.
  std::uint64_t next_id_ = 1;
  std::uint64_t received_bytes_ = 0;
  std::array<std::uint64_t, wire::c10d::kOpCount> requests_{};
  LogLimit refusals_{20, Duration(10'000)};
};

}  // namespace ddp::server
