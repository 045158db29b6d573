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

// Whether the workers of this node can share the rendezvous' store or rank 0 has to make one for
// all of them, and the port that it would have here. They cannot where the user says so
// (JobSpec::own_store), and where their PyTorch is built without libuv: such a one cannot connect
// to a launcher's store. Lives on the main thread, as spawn() wants it.
class WorkerStore {
 public:
  // `spec` outlives this object.
  WorkerStore(asio::io_context& io, const config::JobSpec& spec);

  // Asks the workers' Python, if they have one, which PyTorch it would import, and looks at that
  // (about as long as an interpreter takes to start). `done` comes from the event loop, or at once
  // where there is nothing to ask. Whatever does not work out leaves the rendezvous' store. The
  // process is a child of this one, for others to reap.
  void examine(std::function<void()> done);
  bool torch_lacks_libuv() const { return torch_lacks_libuv_; }
  bool is_needed() const { return spec_.own_store || torch_lacks_libuv_; }

  // The message with what the coordinator has to know of the above.
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
