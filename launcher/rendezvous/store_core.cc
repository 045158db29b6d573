#include "launcher/rendezvous/store_core.h"

#include <utility>

#include <fmt/format.h>

namespace ddp::rendezvous {

using wire::c10d::Dialect;
using wire::c10d::Op;
using wire::c10d::Request;

namespace {

constexpr std::size_t kLengthBytes = 8;  // Before a string.
constexpr std::size_t kKeepBytes = 64u << 10;
constexpr std::size_t kKeepOutputs = 1'024;

template <typename Items>
void clear_and_trim(Items& items, std::size_t keep) {
  items.clear();
  if (items.capacity() > keep) items.shrink_to_fit();
}

}  // namespace

void StoreCore::Effects::clear() {
  clear_and_trim(answer, kKeepBytes);
  clear_and_trim(outputs, kKeepOutputs);
  close_reason.clear();
}

StoreCore::StoreCore(std::size_t max_answer_bytes) : max_answer_bytes_(max_answer_bytes) {}

void StoreCore::on_request(ClientId from, Dialect dialect, const Request& request,
                           Effects& effects) {
  effects.clear();
  if (dialect == Dialect::kLegacy) cancel_wait(from);
  switch (request.op) {
    case Op::kWait:
      return start_wait(from, request.keys, false, effects);
    case Op::kCancelWait:
      cancel_wait(from);
      effects.answer.push_back(wire::c10d::kWaitCanceled);
      return;
    case Op::kBarrier:
      return barrier(from, request, effects);
    case Op::kWatchKey:
      return watch(from, request.key, effects);
    case Op::kSet:
    case Op::kCompareSet:
    case Op::kAdd:
    case Op::kAppend:
    case Op::kDeleteKey:
    case Op::kMultiSet:
      return on_write(request, effects);
    case Op::kQueuePush:
    case Op::kQueuePop:
    case Op::kQueueLen:
      return on_queue(request, effects);
    default:
      return on_read(dialect, request, effects);
  }
}

void StoreCore::on_read(Dialect dialect, const Request& request, Effects& effects) {
  switch (request.op) {
    case Op::kPing:
      return wire::c10d::put_u32(effects.answer, static_cast<std::uint32_t>(request.number));
    case Op::kGet:
    case Op::kMultiGet:
      return multi_get(dialect, request, effects);
    case Op::kCheck: {
      bool ready = true;
      for (const std::string_view key : request.keys) ready = ready && map_.has(key);
      effects.answer.push_back(ready ? wire::c10d::kReady : wire::c10d::kNotReady);
      return;
    }
    case Op::kNumKeys:
      return wire::c10d::put_i64(effects.answer, static_cast<std::int64_t>(map_.values().size()));
    case Op::kListKeys:
      return list_keys(effects);
    default:
      return;  // VALIDATE: the parser has already checked it.
  }
}

void StoreCore::on_write(const Request& request, Effects& effects) {
  switch (request.op) {
    case Op::kSet:
      return store(request.key, request.value, effects);
    case Op::kMultiSet:
      for (std::size_t i = 0; i < request.keys.size(); ++i) {
        store(request.keys[i], request.values[i], effects);
      }
      return;
    case Op::kCompareSet:
      return compare_set(request, effects);
    case Op::kAdd:
      return add(request, effects);
    case Op::kAppend:
      return append(request, effects);
    default:
      return erase(request, effects);
  }
}

void StoreCore::on_queue(const Request& request, Effects& effects) {
  if (request.op == Op::kQueuePop) return queue_pop(request.key, effects);
  if (request.op == Op::kQueueLen) {
    return wire::c10d::put_i64(effects.answer,
                               static_cast<std::int64_t>(map_.queue_len(request.key)));
  }
  map_.push(request.key, request.value);
  wake_one(request.key, effects);
}

void StoreCore::queue_pop(std::string_view key, Effects& effects) {
  const KeyMap::Popped popped = map_.pop(key);
  wire::c10d::put_i64(effects.answer, static_cast<std::int64_t>(popped.length));
  if (popped.length > 0) wire::c10d::put_string(effects.answer, popped.value);
}

// True if `value` fits into the answer.
bool StoreCore::put_answer(std::string_view value, Effects& effects) const {
  if (effects.answer.size() + kLengthBytes + value.size() > max_answer_bytes_) {
    effects.answer.clear();
    effects.close_reason = fmt::format("answer of more than {} bytes", max_answer_bytes_);
    return false;
  }
  wire::c10d::put_string(effects.answer, value);
  return true;
}

void StoreCore::multi_get(Dialect dialect, const Request& request, Effects& effects) {
  const auto put_value = [&](std::string_view key) {
    const std::string* const value = map_.find(key);
    if (value != nullptr) return put_answer(*value, effects);
    if (dialect == Dialect::kNewest) return put_answer({}, effects);
    effects.answer.clear();
    effects.close_reason = fmt::format("get of '{}', which does not exist", key.substr(0, 128));
    return false;
  };
  if (request.op == Op::kGet) {
    put_value(request.key);
    return;
  }
  for (const std::string_view key : request.keys) {
    if (!put_value(key)) return;
  }
}

void StoreCore::list_keys(Effects& effects) {
  wire::c10d::put_i64(effects.answer, static_cast<std::int64_t>(map_.values().size()));
  for (const auto& [key, value] : map_.values()) {
    if (!put_answer(key, effects)) return;
  }
}

void StoreCore::compare_set(const Request& request, Effects& effects) {
  const KeyMap::Compared compared = map_.compare(request.key, request.expected, request.value);
  wire::c10d::put_string(effects.answer, compared.held);
  if (compared.stores) store(request.key, request.value, effects);
}

void StoreCore::add(const Request& request, Effects& effects) {
  const Result<std::int64_t> sum = map_.sum(request.key, request.number);
  if (!sum) {
    effects.close_reason =
        fmt::format("add to '{}': {}", request.key.substr(0, 128), sum.error().message);
    return;
  }
  wire::c10d::put_i64(effects.answer, *sum);
  store(request.key, std::to_string(*sum), effects);
}

void StoreCore::append(const Request& request, Effects& effects) {
  if (watchers_of(request.key) == nullptr) {
    map_.append(request.key, request.value);
    return wake_all(request.key, effects);
  }
  const std::string* const before = map_.find(request.key);
  std::string after = before == nullptr ? std::string() : *before;
  store(request.key, after.append(request.value), effects);
}

void StoreCore::erase(const Request& request, Effects& effects) {
  const Line* const watchers = watchers_of(request.key);
  const std::string* const before = watchers == nullptr ? nullptr : map_.find(request.key);
  if (before != nullptr)
    notify(*watchers, wire::c10d::kKeyDeleted, request.key, *before, {}, effects);
  wire::c10d::put_i64(effects.answer, map_.erase(request.key) ? 1 : 0);
}

// The counter is stored under the key like ADD's numbers. Unlike ADD, it wakes clients only when it
// is complete.
void StoreCore::barrier(ClientId from, const Request& request, Effects& effects) {
  cancel_wait(from);
  const Result<std::int64_t> count = map_.sum(request.key, 1);
  if (!count) {
    effects.close_reason =
        fmt::format("barrier '{}': {}", request.key.substr(0, 128), count.error().message);
    return;
  }
  map_.put(request.key, std::to_string(*count));
  if (*count >= request.number) {
    effects.answer.push_back(wire::c10d::kStopWaiting);
    return wake_all(request.key, effects);
  }
  start_wait(from, {request.key}, true, effects);
}

void StoreCore::watch(ClientId from, std::string_view key, Effects& effects) {
  effects.answer.push_back(wire::c10d::kCallbackRegistered);
  const std::uint64_t ticket = next_ticket_++;
  // A client that watches a key twice is notified once.
  if (watches_[from].emplace(key, ticket).second) {
    watchers_[std::string(key)].emplace(ticket, from);
  }
}

void StoreCore::store(std::string_view key, std::string_view value, Effects& effects) {
  if (const Line* const watchers = watchers_of(key)) {
    const std::string* const before = map_.find(key);
    if (before == nullptr) {
      notify(*watchers, wire::c10d::kKeyCreated, key, {}, value, effects);
    } else {
      notify(*watchers, wire::c10d::kKeyUpdated, key, *before, value, effects);
    }
  }
  map_.put(key, value);
  wake_all(key, effects);
}

const StoreCore::Line* StoreCore::watchers_of(std::string_view key) const {
  if (watchers_.empty()) return nullptr;
  const auto found = watchers_.find(key);
  return found == watchers_.end() ? nullptr : &found->second;
}

void StoreCore::notify(const Line& watchers, char kind, std::string_view key,
                       std::string_view before, std::string_view after, Effects& effects) {
  std::string push(1, kind);
  wire::c10d::put_string(push, key);
  wire::c10d::put_string(push, before);
  wire::c10d::put_string(push, after);
  for (const auto& [ticket, client] : watchers) effects.outputs.push_back({client, push});
}

void StoreCore::start_wait(ClientId client, const std::vector<std::string_view>& keys,
                           bool even_if_present, Effects& effects) {
  cancel_wait(client);
  Wait wait;
  wait.ticket = next_ticket_++;
  for (const std::string_view key : keys) {
    if (!even_if_present && map_.has(key)) continue;
    auto line = waiters_.find(key);
    if (line == waiters_.end()) line = waiters_.emplace(key, Line()).first;
    // A key that is listed twice counts once.
    if (!line->second.emplace(wait.ticket, client).second) continue;
    ++wait.missing;
    wait.keys.emplace_back(key);
  }
  if (wait.missing == 0) {
    effects.answer.push_back(wire::c10d::kStopWaiting);
    return;
  }
  waits_.emplace(client, std::move(wait));
}

void StoreCore::cancel_wait(ClientId client) {
  const auto found = waits_.find(client);
  if (found == waits_.end()) return;
  for (const std::string& key : found->second.keys) {
    const auto line = waiters_.find(key);
    if (line == waiters_.end()) continue;
    line->second.erase(found->second.ticket);
    if (line->second.empty()) waiters_.erase(line);
  }
  waits_.erase(found);
}

void StoreCore::wake_all(std::string_view key, Effects& effects) {
  if (waiters_.empty()) return;
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  const Line line = std::move(found->second);
  waiters_.erase(found);
  for (const auto& [ticket, client] : line) arrived(client, effects);
}

void StoreCore::wake_one(std::string_view key, Effects& effects) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  const ClientId first = found->second.begin()->second;
  found->second.erase(found->second.begin());
  if (found->second.empty()) waiters_.erase(found);
  arrived(first, effects);
}

// One of the keys that the client waits for has arrived, and the client has left that key's line.
void StoreCore::arrived(ClientId client, Effects& effects) {
  const auto found = waits_.find(client);
  DDP_CHECK(found != waits_.end(), "client {} stands in line without waiting", client);
  if (--found->second.missing > 0) return;
  waits_.erase(found);
  effects.outputs.push_back({client, std::string(1, wire::c10d::kStopWaiting)});
}

void StoreCore::on_disconnect(ClientId client) {
  cancel_wait(client);
  const auto found = watches_.find(client);
  if (found == watches_.end()) return;
  for (const auto& [key, ticket] : found->second) {
    const auto line = watchers_.find(key);
    line->second.erase(ticket);
    if (line->second.empty()) watchers_.erase(line);
  }
  watches_.erase(found);
}

}  // namespace ddp::rendezvous
