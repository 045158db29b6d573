#include "tests/sim/store_simulation.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "tests/support/store_transcript.h"

namespace ddp::sim {

using rendezvous::StoreCore;
using wire::c10d::Dialect;
using wire::c10d::Op;
using wire::c10d::Request;

namespace {

constexpr int kSteps = 300;

std::string encoded(const Request& request, Dialect dialect) {
  std::string out;
  wire::c10d::encode_request(request, dialect, out);
  return out;
}

bool switches(Op op) { return op == Op::kMultiGet || op == Op::kMultiSet || op == Op::kCancelWait; }

std::string shown(const Request& request) {
  std::string out = fmt::format("{} '{}'", wire::c10d::op_name(request.op), request.key);
  for (const std::string_view key : request.keys) out += fmt::format(" '{}'", key);
  return fmt::format("{} value '{}' expected '{}' number {}", out, request.value.substr(0, 40),
                     request.expected.substr(0, 40), request.number);
}

}  // namespace

Request StoreRequest::view() const {
  Request out;
  out.op = op;
  out.key = key;
  out.value = value;
  out.expected = expected;
  out.number = number;
  out.keys.assign(keys.begin(), keys.end());
  out.values.assign(values.begin(), values.end());
  return out;
}

StoreSimulation::StoreSimulation(std::uint64_t seed, bool verbose)
    : random_(seed),
      verbose_(verbose),
      old_dialect_(random_.one_in(3) ? Dialect::kInterim : Dialect::kLegacy),
      max_answer_bytes_(random_.one_in(4) ? 2'500 : 1u << 20),
      core_(max_answer_bytes_),
      model_(max_answer_bytes_),
      clients_(static_cast<std::size_t>(random_.between(2, 7))) {
  for (Client& client : clients_) connect(client);
}

std::optional<std::string> StoreSimulation::run(StoreCoverage& coverage) {
  coverage_ = &coverage;
  for (int step = 0; step < kSteps && !violation_; ++step) {
    const auto last = static_cast<std::int64_t>(clients_.size()) - 1;
    Client& client = clients_[static_cast<std::size_t>(random_.between(0, last))];
    if (random_.one_in(40)) {
      disconnect(client);
      connect(client);
    } else if (client.under_way.empty() || random_.one_in(4)) {
      send(client, any_request(client));
    } else {
      deliver(client);
    }
    compare_totals();
  }
  for (Client& client : clients_) {
    if (!violation_) disconnect(client);
  }
  if (!violation_ && core_.num_waits() != 0) complain("waits outlive all clients");
  return violation_;
}

void StoreSimulation::connect(Client& client) {
  client = Client();
  client.id = next_id_++;
  client.speaks = random_.one_in(2)   ? Dialect::kNewest
                  : random_.one_in(2) ? Dialect::kInterim
                                      : old_dialect_;
  client.taken_for = client.speaks == Dialect::kNewest ? Dialect::kNewest : old_dialect_;
  client.parser = std::make_unique<wire::c10d::RequestParser>(wire::c10d::Limits{}, old_dialect_);
  if (verbose_) fmt::print("client {} speaks {}\n", client.id, static_cast<int>(client.speaks));
  if (client.speaks != Dialect::kNewest) return;
  StoreRequest validate;
  validate.op = Op::kValidate;
  validate.number = wire::c10d::kValidateMagic;
  send(client, validate);
}

void StoreSimulation::disconnect(Client& client) {
  if (verbose_) fmt::print("client {} leaves\n", client.id);
  ++coverage_->disconnects;
  if (!client.sent.empty()) ++coverage_->lost_requests;
  core_.on_disconnect(client.id);
  if (random_.one_in(4)) core_.on_disconnect(client.id);
  model_.disconnect(client.id);
}

void StoreSimulation::send(Client& client, const StoreRequest& request) {
  if (client.taken_for == Dialect::kLegacy && switches(request.op)) {
    client.taken_for = Dialect::kInterim;
    if (coverage_ != nullptr) ++coverage_->switches;
  }
  client.under_way += encoded(request.view(), client.speaks);
  client.sent.push_back({request, client.taken_for});
}

void StoreSimulation::deliver(Client& client) {
  std::size_t count = client.under_way.size();
  if (random_.one_in(2)) {
    count = static_cast<std::size_t>(random_.between(1, static_cast<std::int64_t>(count)));
  }
  client.parser->append(std::string_view(client.under_way).substr(0, count));
  client.under_way.erase(0, count);
  const StoreModel::Client id = client.id;
  // A connection that the store closes is replaced by another one.
  while (!violation_ && client.id == id) {
    const Result<const Request*> request = client.parser->next();
    if (!request) return complain(fmt::format("client {}: {}", id, request.error().message));
    if (*request == nullptr) return;
    perform(client, **request);
  }
}

void StoreSimulation::perform(Client& client, const Request& arrived) {
  if (client.sent.empty()) return complain("a request arrives that nobody has sent");
  const Client::Sent sent = std::move(client.sent.front());
  client.sent.pop_front();
  const Request request = sent.request.view();
  if (verbose_) fmt::print("client {}: {}\n", client.id, shown(request));
  if (client.parser->dialect() != sent.taken_for)
    return complain("it is taken for another dialect");
  if (arrived.op != request.op ||
      encoded(arrived, client.speaks) != encoded(request, client.speaks)) {
    return complain(fmt::format("{} arrives as {}", shown(request), shown(arrived)));
  }
  ++coverage_
        ->requests[static_cast<std::size_t>(sent.taken_for)][static_cast<std::size_t>(request.op)];
  StoreCore::Effects effects;
  core_.on_request(client.id, sent.taken_for, arrived, effects);
  StoreModel::Reply reply = model_.apply(client.id, sent.taken_for, request);
  const bool closes = reply.closes;
  compare(client, request, effects, std::move(reply));
  if (!closes) return;
  ++coverage_->closes;
  disconnect(client);
  connect(client);
}

void StoreSimulation::compare(const Client& client, const Request& request,
                              const StoreCore::Effects& effects, StoreModel::Reply reply) {
  std::map<StoreModel::Client, std::string> sent;
  sent[client.id] = effects.answer;
  for (const StoreCore::Output& output : effects.outputs) {
    const bool is_there = std::any_of(clients_.begin(), clients_.end(),
                                      [&](const Client& one) { return one.id == output.to; });
    if (!is_there) return complain(fmt::format("bytes for client {}, who is gone", output.to));
    ++(output.bytes.size() > 1 ? coverage_->pushes : coverage_->woken);
    sent[output.to] += output.bytes;
  }
  if (reply.keys_in_any_order) {
    sent[client.id] = test::sorted_keys(sent[client.id]);
    reply.sent[client.id] = test::sorted_keys(reply.sent[client.id]);
  }
  const auto is_empty = [](const auto& entry) { return entry.second.empty(); };
  std::erase_if(sent, is_empty);
  std::erase_if(reply.sent, is_empty);
  if (!effects.close_reason.empty() != reply.closes) {
    return complain(fmt::format("client {}: {}: the store {}", client.id, shown(request),
                                reply.closes ? "does not close" : effects.close_reason));
  }
  if (sent == reply.sent) return;
  std::string what = fmt::format("client {}: {}", client.id, shown(request));
  for (const auto& [to, bytes] : sent) {
    what += fmt::format("\n  store to client {}: {}", to, test::to_hex(bytes));
  }
  for (const auto& [to, bytes] : reply.sent) {
    what += fmt::format("\n  model to client {}: {}", to, test::to_hex(bytes));
  }
  complain(what);
}

void StoreSimulation::compare_totals() {
  if (violation_) return;
  const auto check = [this](const char* what, std::size_t store, std::size_t model) {
    if (store != model) complain(fmt::format("{} {}, the model has {}", store, what, model));
  };
  check("keys", core_.num_keys(), model_.num_keys());
  check("waits", core_.num_waits(), model_.num_waits());
  check("bytes", core_.num_bytes(), model_.num_bytes());
}

void StoreSimulation::complain(std::string what) {
  if (!violation_) violation_ = std::move(what);
}

StoreRequest StoreSimulation::any_request(const Client& client) {
  StoreRequest out;
  // The numbers of 2.1's DELETE_KEY and APPEND mean something else until the store knows.
  const bool unknown = client.speaks == Dialect::kInterim && client.taken_for == Dialect::kLegacy;
  do {
    out.op = static_cast<Op>(random_.between(1, wire::c10d::kOpCount - 1));
    // What waits and what wakes is worth more than the rest.
    if (random_.one_in(6)) out.op = Op::kWait;
    if (random_.one_in(8)) out.op = Op::kSet;
  } while (!wire::c10d::has_op(client.speaks, out.op) ||
           (unknown && (out.op == Op::kDeleteKey || out.op == Op::kAppend)));
  out.key = any_key();
  out.value = any_value();
  out.expected = any_value();
  out.number = any_number();
  if (out.op == Op::kPing) out.number &= 0xFFFF'FFFF;
  if (out.op == Op::kBarrier) out.number = random_.between(-1, 4);
  for (std::int64_t count = random_.between(0, 4); count > 0; --count) {
    out.keys.push_back(any_key());
    if (out.op == Op::kMultiSet) out.values.push_back(any_value());
  }
  return out;
}

std::string StoreSimulation::any_key() {
  static const std::string kKeys[] = {"/a", "/b", "/c", "/d", "init/", "", std::string("/\0", 2)};
  const std::int64_t last = random_.one_in(4) ? 6 : 2;
  return kKeys[random_.between(0, last)];
}

std::string StoreSimulation::any_value() {
  switch (random_.between(0, 7)) {
    case 0:
      return {};
    case 1:
      return "text";
    case 2:
      return " 12abc";
    case 3:
      return std::to_string(std::numeric_limits<std::int64_t>::max());
    case 4:
      return random_.one_in(4) ? "99999999999999999999" : std::string("\0\xff", 2);
    case 5:
      return random_.one_in(3) ? std::string(1'000, 'v') : "v";
    default:
      return std::to_string(random_.between(-3, 3));
  }
}

std::int64_t StoreSimulation::any_number() {
  if (random_.one_in(10)) return std::numeric_limits<std::int64_t>::max();
  if (random_.one_in(10)) return std::numeric_limits<std::int64_t>::min();
  return random_.between(-2, 5);
}

}  // namespace ddp::sim
