#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/result.h"
#include "common/wire/c10d.h"

// The TCP store as a deterministic object: requests in, bytes out. No sockets, no clock, no
// threads; launcher/server feeds it. Its meanings are those of PyTorch's servers, with the
// differences that the members below name.
namespace ddp::rendezvous {

class StoreCore {
 public:
  using ClientId = std::uint64_t;  // The shell's name for one store connection; never reused.

  struct Output {
    ClientId to = 0;
    std::string bytes;
  };
  // What one request leads to: first `answer` goes to its sender, then each of `outputs` in order.
  struct Effects {
    std::string answer;
    std::vector<Output> outputs;
    // Not empty: the sender's connection is to be closed, and this is why. The protocol has no
    // other way to refuse.
    std::string close_reason;
    void clear();  // Lets go of what a large answer needed.
  };

  // An answer larger than `max_answer_bytes` closes instead: a short request for many values, or
  // for one value many times, must not become gigabytes in the sender's queue.
  explicit StoreCore(std::size_t max_answer_bytes = 256u << 20);

  // Costs in proportion to the request, its answer and the clients it wakes; never to the number of
  // connections or keys. `effects` is cleared first.
  //  - A compare_set that stores wakes those who wait for the key.
  //  - A client waits for one set of keys; its next WAIT or BARRIER replaces that. A client of
  //    kLegacy sends something else only when it has given up, so that ends its wait as well; later
  //    ones say CANCEL_WAIT.
  //  - A get of an absent key is answered with an empty value to kNewest, as its server does, and
  //    by closing to the older ones, as theirs did.
  void on_request(ClientId from, wire::c10d::Dialect dialect, const wire::c10d::Request& request,
                  Effects& effects);
  // The connection is gone: its wait and its watches end. Idempotent.
  void on_disconnect(ClientId client);

  std::size_t num_keys() const { return values_.size(); }
  std::size_t num_waits() const { return waits_.size(); }
  // Of all keys, their values, and what is queued.
  std::size_t num_bytes() const { return bytes_; }

 private:
  using Request = wire::c10d::Request;
  using Dialect = wire::c10d::Dialect;

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  template <typename T>
  using KeyMap = std::unordered_map<std::string, T, Hash, std::equal_to<>>;
  // Clients by the order in which they came.
  using Line = std::map<std::uint64_t, ClientId>;

  // What a client waits for. `missing` counts the lines of waiters_ that hold its ticket: a key
  // that arrived is not looked at again, even if it is deleted before the others arrive.
  struct Wait {
    std::uint64_t ticket = 0;
    std::size_t missing = 0;
    std::vector<std::string> keys;
  };

  void on_read(Dialect dialect, const Request& request, Effects& effects);
  void on_write(const Request& request, Effects& effects);
  void on_queue(const Request& request, Effects& effects);

  void compare_set(const Request& request, Effects& effects);
  void add(const Request& request, Effects& effects);
  void append(const Request& request, Effects& effects);
  void erase(const Request& request, Effects& effects);
  void multi_get(Dialect dialect, const Request& request, Effects& effects);
  void list_keys(Effects& effects);
  void barrier(ClientId from, const Request& request, Effects& effects);
  void watch(ClientId from, std::string_view key, Effects& effects);
  void queue_pop(std::string_view key, Effects& effects);

  bool put_answer(std::string_view value, Effects& effects) const;
  void replace(std::string& value, std::string_view by);
  void store(std::string_view key, std::string_view value, Effects& effects);
  void notify(char kind, std::string_view key, std::string_view before, std::string_view after,
              Effects& effects);
  bool is_present(std::string_view key) const;
  // The client stands in line for those of `keys` that are absent.
  void start_wait(ClientId client, const std::vector<std::string_view>& keys, bool even_if_present,
                  Effects& effects);
  void cancel_wait(ClientId client);
  void wake_all(std::string_view key, Effects& effects);
  void wake_one(std::string_view key, Effects& effects);
  void arrived(ClientId client, Effects& effects);

  std::size_t max_answer_bytes_;
  std::uint64_t next_ticket_ = 1;
  std::size_t bytes_ = 0;
  KeyMap<std::string> values_;
  KeyMap<std::deque<std::string>> queues_;  // None is empty.
  KeyMap<Line> waiters_;                    // None is empty.
  std::unordered_map<ClientId, Wait> waits_;
  KeyMap<Line> watchers_;                                        // None is empty.
  std::unordered_map<ClientId, KeyMap<std::uint64_t>> watches_;  // Tickets by key.
};

}  // namespace ddp::rendezvous
