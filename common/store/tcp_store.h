#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/store/store.h"

namespace ddp {

namespace wire::c10d {
enum class Dialect;
}

struct TcpStoreOptions {
  // How long connect() may try, and how long a call may wait for the server's answer. (get(),
  // wait() and similar calls have a timeout of their own for the key.)
  Store::Timeout timeout{std::chrono::minutes(5)};
  // How long to try to restore a lost connection.
  Store::Timeout retry{std::chrono::seconds(5)};
  // The dialect that the server speaks (wire/c10d.h); empty: find out by asking it.
  std::optional<wire::c10d::Dialect> dialect = {};
};

// Makes a client of a c10d TCPStore server, ours or that of any PyTorch since 1.9. One connection;
// see Store for threads. Keys get the leading "/" that PyTorch's clients give them, so that both
// see the same keys.
//
// Each operation is one write and one round trip, set() included: when it returns, the server has
// done it. Two round trips are needed by a get() of an empty value or from a server before PyTorch
// 2.2.
//
// The limits are those of PyTorch's servers, which close the connection if a request exceeds them:
// keys of 8 KiB, values of 8 MiB, 131,072 keys in a check() or wait(). A call that exceeds them
// gives kInvalidArgument and sends nothing.
//
// What a server lacks:
//   list_keys()           before PyTorch 2.10, or without libuv: kInvalidArgument
//   waking by compare_set PyTorch's servers without libuv (all before 2.4) do not
//
// A lost connection is restored without the caller's help. The operation under way is then repeated
// if doing it twice does no harm: get, set, check, wait, num_keys, list_keys. The others (add,
// compare_set, delete_key) are repeated only if the system had not yet taken the whole request.
// Otherwise kPeerLost says that the operation may or may not have been done; the object stays
// usable.
//
// Restoring is tried for TcpStoreOptions::retry, but not beyond the operation's own timeout, and at
// least once. After that the call gives kPeerLost. Once `retry` has passed, the object is unusable
// and every call says so at once. A server that was restarted has no keys, so waits go on until the
// keys are set again.
//
// Connecting is tried again, with growing pauses, if the name does not resolve or the connection is
// refused or reset.
//   kTimeout   no server within the timeout; the message has the last reason
//   kProtocol  the port belongs to something else
Result<std::unique_ptr<Store>> connect_tcp_store(const std::string& host, int port,
                                                 const TcpStoreOptions& options);
Result<std::unique_ptr<Store>> connect_tcp_store(const std::string& host, int port,
                                                 Store::Timeout timeout);

}  // namespace ddp
