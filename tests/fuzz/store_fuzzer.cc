// Feeds arbitrary bytes to the store: RequestParser and StoreCore with several connections of all
// dialects, under libFuzzer with the address and undefined behaviour sanitizers. If the bytes form
// requests, the model of tests/sim is the oracle.
//
// An input is a byte of settings (1: small limits, 2: old connections are PyTorch 2.1's, 4: small
// answers), then pieces. A piece is a byte that selects one of four connections (its low two bits)
// and may first end it (bit 7), a byte of length, and that many bytes, which arrive on it.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "common/wire/c10d.h"
#include "launcher/rendezvous/store_core.h"
#include "tests/sim/store_model.h"
#include "tests/support/store_transcript.h"

namespace {

using ddp::rendezvous::StoreCore;
using ddp::sim::StoreModel;
using namespace ddp::wire::c10d;  // NOLINT(google-build-using-namespace): what is fuzzed.

void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "the store and its model differ: %s\n", what);
  std::abort();
}

class Store {
 public:
  explicit Store(unsigned char settings)
      : limits_((settings & 1) != 0 ? Limits{16, 64, 4, 200} : Limits{}),
        old_((settings & 2) != 0 ? Dialect::kInterim : Dialect::kLegacy),
        max_answer_bytes_((settings & 4) != 0 ? 64 : 1u << 16),
        core_(max_answer_bytes_),
        model_(max_answer_bytes_) {
    for (Connection& connection : connections_) reopen(connection);
  }

  void receive(std::size_t index, std::string_view bytes) {
    Connection& connection = connections_[index];
    connection.parser.append(bytes);
    while (true) {
      const ddp::Result<const Request*> request = connection.parser.next();
      if (request && *request == nullptr) break;
      if (!request || !perform(connection, **request)) return leave(index);
    }
    must(connection.parser.buffered_bytes() <= limits_.request_bytes, "a request beyond its limit");
  }

  void leave(std::size_t index) {
    core_.on_disconnect(connections_[index].id);
    model_.disconnect(connections_[index].id);
    reopen(connections_[index]);
  }

  ~Store() {
    for (std::size_t i = 0; i < connections_.size(); ++i) leave(i);
    must(core_.num_waits() == 0, "waits outlive their clients");
  }

 private:
  struct Connection {
    StoreCore::ClientId id = 0;
    RequestParser parser;
  };

  void reopen(Connection& connection) { connection = {next_id_++, RequestParser(limits_, old_)}; }

  // False if the connection is to be closed.
  bool perform(const Connection& connection, const Request& request) {
    StoreCore::Effects effects;
    core_.on_request(connection.id, *connection.parser.dialect(), request, effects);
    StoreModel::Reply reply = model_.apply(connection.id, *connection.parser.dialect(), request);
    std::map<StoreModel::Client, std::string> sent;
    sent[connection.id] = effects.answer;
    for (const StoreCore::Output& output : effects.outputs) sent[output.to] += output.bytes;
    if (reply.keys_in_any_order) {
      sent[connection.id] = ddp::test::sorted_keys(sent[connection.id]);
      reply.sent[connection.id] = ddp::test::sorted_keys(reply.sent[connection.id]);
    }
    const auto is_empty = [](const auto& entry) { return entry.second.empty(); };
    std::erase_if(sent, is_empty);
    std::erase_if(reply.sent, is_empty);
    must(sent == reply.sent, op_name(request.op));
    must(effects.close_reason.empty() != reply.closes, "closing");
    must(core_.num_keys() == model_.num_keys(), "the number of keys");
    must(core_.num_waits() == model_.num_waits(), "the number of waits");
    must(core_.num_bytes() == model_.num_bytes(), "the number of bytes");
    return !reply.closes;
  }

  Limits limits_;
  Dialect old_;
  std::size_t max_answer_bytes_;
  StoreCore core_;
  StoreModel model_;
  StoreCore::ClientId next_id_ = 1;
  std::array<Connection, 4> connections_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  Store store(static_cast<unsigned char>(input[0]));
  input.remove_prefix(1);
  while (input.size() > 2) {
    const auto where = static_cast<unsigned char>(input[0]);
    const auto length = static_cast<unsigned char>(input[1]);
    input.remove_prefix(2);
    if ((where & 0x80) != 0) store.leave(where & 3u);
    const std::string_view piece = input.substr(0, length);
    store.receive(where & 3u, piece);
    input.remove_prefix(piece.size());
  }
  return 0;
}
