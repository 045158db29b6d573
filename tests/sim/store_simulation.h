#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/rendezvous/store_core.h"
#include "tests/sim/random.h"
#include "tests/sim/store_model.h"

namespace ddp::sim {

// A request that owns its texts.
struct StoreRequest {
  wire::c10d::Op op = wire::c10d::Op::kNumKeys;
  std::string key, value, expected;
  std::int64_t number = 0;
  std::vector<std::string> keys, values;

  wire::c10d::Request view() const;
};

// How often what happened, over many seeds.
struct StoreCoverage {
  std::array<std::array<std::uint64_t, wire::c10d::kOpCount>, wire::c10d::kDialectCount> requests{};
  std::uint64_t woken = 0;          // Waits that ended later than their request.
  std::uint64_t pushes = 0;         // Answers to watches.
  std::uint64_t closes = 0;         // By the store.
  std::uint64_t disconnects = 0;    // By the client.
  std::uint64_t lost_requests = 0;  // Sent by one that left before they were whole.
  std::uint64_t switches = 0;       // From the legacy to the interim dialect.
};

// RequestParser and StoreCore as the daemon uses them, with clients of all dialects whose bytes
// arrive in pieces, in any order among each other, against StoreModel.
class StoreSimulation {
 public:
  explicit StoreSimulation(std::uint64_t seed, bool verbose = false);

  // Runs to the end. What the store did wrong, or nothing.
  std::optional<std::string> run(StoreCoverage& coverage);

 private:
  struct Client {
    StoreModel::Client id = 0;
    wire::c10d::Dialect speaks = wire::c10d::Dialect::kNewest;
    wire::c10d::Dialect taken_for = wire::c10d::Dialect::kNewest;  // By what it has sent so far.
    std::unique_ptr<wire::c10d::RequestParser> parser;
    struct Sent {
      StoreRequest request;
      wire::c10d::Dialect taken_for;
    };
    std::deque<Sent> sent;  // Not arrived in whole yet.
    std::string under_way;  // Its bytes, not arrived at all.
  };

  void connect(Client& client);
  void disconnect(Client& client);
  void send(Client& client, const StoreRequest& request);
  void deliver(Client& client);
  void perform(Client& client, const wire::c10d::Request& arrived);
  void compare(const Client& client, const wire::c10d::Request& request,
               const rendezvous::StoreCore::Effects& effects, StoreModel::Reply reply);
  void compare_totals();
  void complain(std::string what);

  StoreRequest any_request(const Client& client);
  std::string any_key();
  std::string any_value();
  std::int64_t any_number();

  Random random_;
  bool verbose_;
  wire::c10d::Dialect old_dialect_;
  std::size_t max_answer_bytes_;
  rendezvous::StoreCore core_;
  StoreModel model_;
  StoreModel::Client next_id_ = 1;
  std::vector<Client> clients_;
  std::optional<std::string> violation_;
  StoreCoverage* coverage_ = nullptr;
};

}  // namespace ddp::sim
