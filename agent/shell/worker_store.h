#pragma once

#include <functional>
#include <string>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "agent/process/store_port.h"
#include "common/config/job_spec.h"
#include "common/net/timer.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::agent {

// Decides whether the workers of this node can share the rendezvous' store, or rank 0 must make one
// for all workers, and reserves the port that it would have on this node. They cannot share it if
// the user says so (JobSpec::own_store), or if their PyTorch is built without libuv, because it
// then cannot connect to a launcher's store. Lives on the main thread, as spawn() requires.
class WorkerStore {
 public:
  // `spec` must outlive this object.
  WorkerStore(asio::io_context& io, const config::JobSpec& spec);

  // Asks the workers' Python, if they have one, which PyTorch it would import, and examines that.
  // This takes about as long as the start of an interpreter. `done` is called from the event loop,
  // or at once if there is no Python. If anything fails, the rendezvous' store is used. The Python
  // process is a child of this one, and others must reap it.
  void examine(std::function<void()> done);
  bool torch_lacks_libuv() const { return torch_lacks_libuv_; }
  bool is_needed() const { return spec_.own_store || torch_lacks_libuv_; }

  // Adds to the message what the coordinator must know about this.
  wire::AgentMessage completed(wire::AgentMessage message);
  void begin_round(const wire::RoundStart& round);

 private:
  void read();
  void finish();
  int port();

  const config::JobSpec& spec_;
  asio::posix::stream_descriptor answer_;
  net::Timer limit_;
  std::string text_;
  std::function<void()> done_;
  bool torch_lacks_libuv_ = false;
  StorePort port_;
};

}  // namespace ddp::agent
