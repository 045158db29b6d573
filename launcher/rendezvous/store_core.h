#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/key_map.h"
#include "common/wire/c10d.h"

// The TCP store as a deterministic object: requests in, bytes out. No sockets, no clock, no
// threads; launcher/server feeds it. Requests mean what they mean to PyTorch's servers, with the
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
    // If not empty: why the sender's connection must be closed. The protocol has no other way to
    // refuse a request.
    std::string close_reason;
    void clear();  // Also frees the memory of a large answer.
  };

  // Instead of an answer larger than `max_answer_bytes`, the connection is closed. A short request
  // for many values, or for one value many times, must not put gigabytes into the sender's queue.
  explicit StoreCore(std::size_t max_answer_bytes = 256u << 20);

  // Takes time in proportion to the request, its answer and the clients that it wakes, but never to
  // the number of connections or keys. Clears `effects` first.
  //  - A compare_set that stores a value wakes the clients that wait for the key.
  //  - A client waits for one set of keys. Its next WAIT or BARRIER replaces that set. A kLegacy
  //    client sends another request only after it has given up, so that also ends its wait. Newer
  //    clients send CANCEL_WAIT.
  //  - A get of an absent key: kNewest clients get an empty value, and the connections of older
  //  ones
  //    are closed. Their own servers do the same.
  void on_request(ClientId from, wire::c10d::Dialect dialect, const wire::c10d::Request& request,
                  Effects& effects);
  // The connection is gone: its wait and its watches end. Idempotent.
  void on_disconnect(ClientId client);

  std::size_t num_keys() const { return map_.values().size(); }
  std::size_t num_waits() const { return waits_.size(); }
  // Bytes of all keys, their values and the queues.
  std::size_t num_bytes() const { return map_.num_bytes(); }

 private:
  using Request = wire::c10d::Request;
  using Dialect = wire::c10d::Dialect;

  // Clients in the order in which they came, by ticket.
  using Line = std::map<std::uint64_t, ClientId>;

  // What a client waits for. `missing` counts the lines in waiters_ that hold its ticket. A key
  // that has arrived counts as arrived even if it is deleted before the others arrive.
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
  void store(std::string_view key, std::string_view value, Effects& effects);
  // Those who watch the key; nullptr if nobody does.
  const Line* watchers_of(std::string_view key) const;
  static void notify(const Line& watchers, char kind, std::string_view key, std::string_view before,
                     std::string_view after, Effects& effects);
  // Puts the client in line for those of `keys` that are absent.
  void start_wait(ClientId client, const std::vector<std::string_view>& keys, bool even_if_present,
                  Effects& effects);
  void cancel_wait(ClientId client);
  void wake_all(std::string_view key, Effects& effects);
  void wake_one(std::string_view key, Effects& effects);
  void arrived(ClientId client, Effects& effects);

  std::size_t max_answer_bytes_;
  std::uint64_t next_ticket_ = 1;
  KeyMap map_;
  ByKey<Line> waiters_;  // None is empty.
  std::unordered_map<ClientId, Wait> waits_;
  ByKey<Line> watchers_;                                        // None is empty.
  std::unordered_map<ClientId, ByKey<std::uint64_t>> watches_;  // Tickets by key.
};

}  // namespace ddp::rendezvous
