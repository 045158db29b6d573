#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/store/store.h"
#include "common/wire/c10d.h"

namespace ddp {

class Socket;

struct TcpStoreOptions {
  // The longest that connect() tries, and that a call waits for the server's answer. (What get(),
  // wait() and the like wait for has its own limit.)
  Store::Timeout timeout{std::chrono::minutes(5)};
  // How long a lost connection is tried to be had again.
  Store::Timeout retry{std::chrono::seconds(5)};
  // What the server speaks, if it is not to be found out by asking.
  std::optional<wire::c10d::Dialect> dialect = {};
  // What every new connection begins with, for a server that asks who is there; empty: nothing. An
  // error of permission_denied (std::errc) is the end of the trying.
  std::function<Result<void>(Socket& socket, TimePoint deadline)> introduce = {};
};

// Client of a c10d TCPStore server, ours or that of any PyTorch since 1.9. One connection; see
// Store for threads. Keys get the leading "/" that PyTorch's clients give them, so that both see
// the same keys.
//
// Each operation is one write and costs one round trip, set() included: when it returns, the server
// has done it. Two trips: multi_get(), a get() of an empty value or from a server before PyTorch
// 2.2, queue_pop() that had to wait; and the first barrier() and queue operation of an object, to
// find out whether the server has them.
//
// Limits are those of PyTorch's servers, which close the connection beyond: keys of 8 KiB, values
// of 8 MiB, 131,072 keys in a check() or wait(). More is kInvalidArgument and nothing is sent.
//
// What a server lacks:
//   append()              before PyTorch 2.1: kInvalidArgument
//   queues, list_keys()   before 2.8 and 2.10, or without libuv: kInvalidArgument
//   barrier()             before 2.12: by add() and wait(), with a second key KEY/open; all callers
//                         must then be of this kind
//   multi_get, multi_set  before 2.1: by several requests
//   waking by compare_set PyTorch's servers without libuv (all before 2.4) do not
//
// A lost connection is made again without the caller's knowing. What was under way is then
//   repeated               get, multi_get, set, multi_set, check, wait, num_keys, list_keys,
//                          queue_len: doing them twice does no harm
//   repeated only if it    add, append, compare_set, delete_key, queue_push, queue_pop, barrier,
//   cannot have been done  that is, as long as the system had not taken the whole request.
//                          Otherwise kPeerLost says that it may or may not have been done; the
//                          object can be used further.
// The connection is tried for TcpStoreOptions::retry, but not beyond the operation's own timeout
// (once at least); then kPeerLost. When `retry` has passed the object is of no further use, and
// every call says so at once. A server that was started anew has no keys: waits go on and wait for
// them.
class TcpStore {
 public:
  // Retries names that do not resolve and refused or reset connections with back-off.
  //   kTimeout   no server within the timeout; the message has the last reason
  //   kProtocol  the port belongs to something else
  static Result<std::unique_ptr<Store>> connect(const std::string& host, int port,
                                                const TcpStoreOptions& options);
  static Result<std::unique_ptr<Store>> connect(const std::string& host, int port,
                                                Store::Timeout timeout);
};

}  // namespace ddp
