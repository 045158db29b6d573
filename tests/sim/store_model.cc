#include "tests/sim/store_model.h"

#include <algorithm>
#include <cerrno>

#include <stdlib.h>

namespace ddp::sim {

using wire::c10d::Dialect;
using wire::c10d::Op;
using wire::c10d::Request;

StoreModel::Reply StoreModel::apply(Client from, Dialect dialect, const Request& request) {
  reply_ = {};
  ++requests_;
  std::string answer;
  // PyTorch <= 2.0 does not say that it stops waiting; it just sends another request.
  if (dialect == Dialect::kLegacy) waits_.erase(from);
  switch (request.op) {
    case Op::kWait: {
      std::set<std::string> missing;
      for (const std::string_view key : request.keys) {
        if (!present(key)) missing.emplace(key);
      }
      wait(from, missing, answer);
      break;
    }
    case Op::kCancelWait:
      waits_.erase(from);
      answer = '\x01';
      break;
    case Op::kBarrier:
      barrier(from, request, answer);
      break;
    case Op::kWatchKey: {
      const std::pair watch(std::string(request.key), from);
      if (std::find(watches_.begin(), watches_.end(), watch) == watches_.end()) {
        watches_.push_back(watch);
      }
      answer = '\x03';
      break;
    }
    case Op::kQueuePush:
    case Op::kQueuePop:
    case Op::kQueueLen:
      apply_queue(request, answer);
      break;
    default:
      apply_read(dialect, request, answer);
      apply_write(request, answer);
  }
  if (reply_.closes) return std::exchange(reply_, {});
  reply_.sent[from].insert(0, answer);
  return std::exchange(reply_, {});
}

void StoreModel::apply_read(Dialect dialect, const Request& request, std::string& answer) {
  std::vector<std::string_view> wanted;
  switch (request.op) {
    case Op::kPing:
      return wire::c10d::put_u32(answer, static_cast<std::uint32_t>(request.number));
    case Op::kNumKeys:
      return wire::c10d::put_i64(answer, static_cast<std::int64_t>(values_.size()));
    case Op::kCheck:
      answer = '\x00';
      for (const std::string_view key : request.keys) {
        if (!present(key)) answer = '\x01';
      }
      return;
    case Op::kListKeys:
      reply_.keys_in_any_order = true;
      wire::c10d::put_i64(answer, static_cast<std::int64_t>(values_.size()));
      for (const auto& [key, value] : values_) wire::c10d::put_string(answer, key);
      break;
    case Op::kGet:
      wanted = {request.key};
      break;
    case Op::kMultiGet:
      wanted = request.keys;
      break;
    default:
      return;
  }
  for (const std::string_view key : wanted) {
    const auto found = values_.find(key);
    if (found == values_.end() && dialect != Dialect::kNewest) return close();
    wire::c10d::put_string(answer, found == values_.end() ? std::string() : found->second);
  }
  if (answer.size() > max_answer_bytes_) close();
}

void StoreModel::apply_write(const Request& request, std::string& answer) {
  const std::string key(request.key), value(request.value);
  const auto found = values_.find(key);
  const bool exists = found != values_.end();
  switch (request.op) {
    case Op::kSet:
      return store(key, value);
    case Op::kMultiSet:
      for (std::size_t i = 0; i < request.keys.size(); ++i) {
        store(request.keys[i], std::string(request.values[i]));
      }
      return;
    case Op::kAppend:
      return store(key, (exists ? found->second : std::string()) + value);
    case Op::kCompareSet: {
      const std::string current = exists ? found->second : std::string();
      if (current == request.expected) {
        wire::c10d::put_string(answer, value);
        return store(key, value);
      }
      return wire::c10d::put_string(answer, exists ? current : std::string(request.expected));
    }
    case Op::kAdd: {
      const std::optional<std::int64_t> result = sum(key, request.number);
      if (!result) return close();
      wire::c10d::put_i64(answer, *result);
      return store(key, std::to_string(*result));
    }
    case Op::kDeleteKey:
      wire::c10d::put_i64(answer, exists ? 1 : 0);
      if (!exists) return;
      push('\x02', key, found->second, {});
      values_.erase(found);
      return;
    default:
      return;
  }
}

void StoreModel::apply_queue(const Request& request, std::string& answer) {
  const std::string key(request.key);
  std::deque<std::string>& queue = queues_[key];
  if (request.op == Op::kQueuePush) {
    queue.emplace_back(request.value);
    // The client that has waited longest for the key.
    Client first = 0;
    for (const auto& [client, wait] : waits_) {
      if (!wait.missing.contains(key)) continue;
      if (first == 0 || wait.since < waits_[first].since) first = client;
    }
    if (first != 0) arrives(key, first);
  } else {
    wire::c10d::put_i64(answer, static_cast<std::int64_t>(queue.size()));
    if (request.op == Op::kQueuePop && !queue.empty()) {
      wire::c10d::put_string(answer, queue.front());
      queue.pop_front();
    }
  }
  if (queue.empty()) queues_.erase(key);
}

void StoreModel::barrier(Client from, const Request& request, std::string& answer) {
  const std::string key(request.key);
  waits_.erase(from);
  const std::optional<std::int64_t> count = sum(key, 1);
  if (!count) return close();
  values_[key] = std::to_string(*count);
  if (*count < request.number) return wait(from, {key}, answer);
  answer = '\x00';
  for (const auto& [client, ignored] : std::map(waits_)) arrives(key, client);
}

// With the C library, whose rules ADD follows.
std::optional<std::int64_t> StoreModel::sum(std::string_view key, std::int64_t delta) const {
  const auto found = values_.find(key);
  const std::string text = found == values_.end() ? "0" : found->second;
  char* end = nullptr;
  errno = 0;
  const long long number = ::strtoll(text.c_str(), &end, 10);
  if (end == text.c_str() || errno == ERANGE) return std::nullopt;
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(number) +
                                   static_cast<std::uint64_t>(delta));
}

bool StoreModel::present(std::string_view key) const {
  return values_.contains(key) || queues_.contains(key);
}

void StoreModel::wait(Client client, const std::set<std::string>& missing, std::string& answer) {
  waits_.erase(client);
  if (missing.empty()) {
    answer = '\x00';
  } else {
    waits_[client] = {requests_, missing};
  }
}

void StoreModel::store(std::string_view key, const std::string& value) {
  const auto found = values_.find(key);
  const bool exists = found != values_.end();
  push(exists ? '\x00' : '\x01', key, exists ? found->second : std::string(), value);
  values_[std::string(key)] = value;
  for (const auto& [client, ignored] : std::map(waits_)) arrives(std::string(key), client);
}

void StoreModel::push(char kind, std::string_view key, std::string_view before,
                      std::string_view after) {
  for (const auto& [watched, client] : watches_) {
    if (watched != key) continue;
    std::string& out = reply_.sent[client];
    out += kind;
    wire::c10d::put_string(out, key);
    wire::c10d::put_string(out, before);
    wire::c10d::put_string(out, after);
  }
}

void StoreModel::arrives(const std::string& key, Client at) {
  const auto found = waits_.find(at);
  if (found->second.missing.erase(key) == 0 || !found->second.missing.empty()) return;
  waits_.erase(found);
  reply_.sent[at] += '\x00';
}

void StoreModel::close() { reply_.closes = true; }

void StoreModel::disconnect(Client client) {
  waits_.erase(client);
  std::erase_if(watches_, [client](const auto& watch) { return watch.second == client; });
}

std::size_t StoreModel::num_bytes() const {
  std::size_t sum = 0;
  for (const auto& [key, value] : values_) sum += key.size() + value.size();
  for (const auto& [key, queue] : queues_) {
    for (const std::string& value : queue) sum += value.size();
  }
  return sum;
}

}  // namespace ddp::sim
