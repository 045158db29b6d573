#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/wire/c10d.h"

namespace ddp::sim {

// A model of the store, as simple as possible: a map of values, a map of queues, and for each
// client the set of keys that it still waits for. It scans everything for every request, and shares
// only the bytes of the protocol with StoreCore.
class StoreModel {
 public:
  using Client = std::uint64_t;

  struct Reply {
    std::map<Client, std::string> sent;  // What the request makes each client receive.
    bool closes = false;                 // The sender's connection ends.
    bool keys_in_any_order = false;      // The sender's bytes are a list of keys.
  };

  explicit StoreModel(std::size_t max_answer_bytes) : max_answer_bytes_(max_answer_bytes) {}

  Reply apply(Client from, wire::c10d::Dialect dialect, const wire::c10d::Request& request);
  void disconnect(Client client);

  std::size_t num_keys() const { return values_.size(); }
  std::size_t num_waits() const { return waits_.size(); }
  std::size_t num_bytes() const;

 private:
  using Request = wire::c10d::Request;

  struct Wait {
    std::uint64_t since = 0;  // The number of its request.
    std::set<std::string> missing;
  };

  void apply_write(const Request& request, std::string& answer);
  void apply_read(wire::c10d::Dialect dialect, const Request& request, std::string& answer);
  void apply_queue(const Request& request, std::string& answer);
  void barrier(Client from, const Request& request, std::string& answer);

  std::optional<std::int64_t> sum(std::string_view key, std::int64_t delta) const;
  bool present(std::string_view key) const;
  void wait(Client client, const std::set<std::string>& missing, std::string& answer);
  void store(std::string_view key, const std::string& value);
  void push(char kind, std::string_view key, std::string_view before, std::string_view after);
  void arrives(const std::string& key, Client at);
  void close();

  std::size_t max_answer_bytes_;
  std::uint64_t requests_ = 0;
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, std::deque<std::string>, std::less<>> queues_;
  std::map<Client, Wait> waits_;
  std::vector<std::pair<std::string, Client>> watches_;
  Reply reply_;  // Of the request under way, without the sender's answer.
};

}  // namespace ddp::sim
