#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"

// Requests to etcd's JSON gateway (API version 3) and its answers. Pure. The gateway's rules: bytes
// are base64, 64-bit numbers are strings, and members that are zero are left out.
namespace ddp::etcd {

using LeaseId = std::int64_t;   // 0: none.
using Revision = std::int64_t;  // Of the whole store; every change raises it.

struct KeyValue {
  std::string key;
  std::string value;
  Revision create_revision = 0;  // When the key was created.
  Revision mod_revision = 0;     // When it was last written.
  LeaseId lease = 0;
};

// What must hold for a transaction to succeed.
struct Compare {
  enum class What { kCreated, kModified };
  std::string key;
  What what = What::kCreated;
  Revision revision = 0;  // 0: there is no such key.
};

struct Put {
  std::string key;
  std::string value;
  LeaseId lease = 0;  // The key is deleted when this lease ends.
};

// If all of `compare` hold, `put` is done. The keys of `get` are read afterwards in any case.
struct Transaction {
  std::vector<Compare> compare;
  std::vector<Put> put;
  std::vector<std::string> get;
};

struct TransactionAnswer {
  bool succeeded = false;
  Revision revision = 0;
  // In the order of Transaction::get; nothing for a key that does not exist.
  std::vector<std::optional<KeyValue>> got;
};

// What a watch reports: the answer's revision, and whether keys have changed.
struct WatchAnswer {
  bool changed = false;
  bool ended = false;  // The server gave the watch up; `reason` says why.
  std::string reason;
};

std::string to_base64(std::string_view bytes);
// kProtocol if the text is not base64.
Result<std::string> from_base64(std::string_view text);

std::string to_json(const Transaction& transaction);
// kProtocol for anything that is not the answer to `transaction`.
Result<TransactionAnswer> parse_answer(const Transaction& transaction, std::string_view json);

std::string lease_grant_json(std::int64_t seconds);
Result<LeaseId> parse_lease_grant(std::string_view json);
std::string lease_json(LeaseId lease);  // For keepalive and revoke.
// Seconds until the lease ends; 0: the lease no longer exists.
Result<std::int64_t> parse_keep_alive(std::string_view json);

// Asks to watch one key, from revision `start` on.
std::string watch_json(std::string_view key, Revision start);
Result<WatchAnswer> parse_watch(std::string_view json);

// What an answer says about an error: the text, and gRPC's code (14: unavailable).
struct ErrorAnswer {
  int code = 2;
  std::string message;
};
ErrorAnswer parse_error(std::string_view body);

}  // namespace ddp::etcd
