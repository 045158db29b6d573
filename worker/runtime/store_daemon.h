#pragma once

#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::runtime {

// Makes sure that a store is served at HOST:PORT, by starting the program ddp-rendezvous, which
// ends with this process, however that ends. (Not sooner: the next group may meet there, and its
// other ranks must not find the old store dying.) Starts nothing if this process has done so
// before, if the port is taken, or if HOST is not this machine. When it returns, the daemon
// listens: on the loopback interface if `host` resolves to that, else on all addresses. Any thread.
//   kNotFound  no ddp-rendezvous: looked for as $DDP_RENDEZVOUS, beside this program, beside the
//              library and in the bin beside that, and in PATH
//   kIo        it cannot be started, or it ended at once; its own message is in standard error
//   kTimeout   it did not report in time that it listens
Result<void> serve_store(const std::string& host, int port, TimePoint deadline);

// A private store on the loopback interface, at a port that the system picks, as long as the object
// lives. One thread. Errors as for serve_store.
class ServedStore {
 public:
  static Result<ServedStore> start(TimePoint deadline);
  ServedStore(ServedStore&& other) noexcept;
  ServedStore& operator=(ServedStore&&) = delete;
  ~ServedStore();

  int port() const { return port_; }

 private:
  ServedStore(int port, int pid, UniqueFd input)
      : port_(port), pid_(pid), input_(std::move(input)) {}

  int port_;
  int pid_;         // -1: moved away.
  UniqueFd input_;  // The daemon ends when this closes.
};

}  // namespace ddp::runtime
