// The agent's way to a coordinator that has moved, over real sockets.
#include "agent/shell/coordinator_link.h"

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/event_loop.h"
#include "tests/support/server_thread.h"

namespace ddp::agent {
namespace {

using test::run_until;
using test::ServerThread;

// As an agent that wants to join.
class JoiningLink {
 public:
  explicit JoiningLink(asio::io_context& io, int port)
      : link_(io, {"127.0.0.1", port}, {},
              {.on_connected = [this] { join(); },
               .on_connect_failed = [this](const std::string&) { again(); },
               .on_connect_refused = [this](const std::string&) { again(); },
               .on_disconnected = [this] { again(); },
               .on_message = [this](const wire::CoordinatorMessage&) { answered_ = true; },
               .on_aimed = [this](const HostPort& at) { aims_.push_back(at.port); }}) {
    link_.connect(Duration(0));
  }
  bool answered() const { return answered_; }
  // The ports to which it turned, one after the other.
  const std::vector<int>& aims() const { return aims_; }

 private:
  void join() {
    wire::Join join;
    join.job_id = "job";
    join.node_id = "a";
    link_.send(join);
  }
  void again() { link_.connect(Duration(5)); }

  bool answered_ = false;
  std::vector<int> aims_;
  CoordinatorLink link_;
};

int port_where_nobody_listens() { return ServerThread().port(); }

TEST(CoordinatorLink, AsksAgainIfNobodyIsWhereTheCoordinatorWas) {
  const int gone = port_where_nobody_listens();
  ServerThread coordinator;
  std::atomic<int> known = gone;
  server::ServerOptions options;
  options.stands_by = true;
  ServerThread endpoint(options);
  endpoint.call([&] {
    server::AgentFront::ReplicaHooks hooks;
    hooks.coordinator = [&known] { return std::optional(HostPort{"127.0.0.1", known.load()}); };
    endpoint.server().set_replica_hooks(std::move(hooks));
  });
  asio::io_context io;
  JoiningLink link(io, endpoint.port());
  // It has followed what the endpoint said, found nobody, and turned back.
  ASSERT_TRUE(run_until(io, [&] { return link.aims().size() >= 2; }));
  EXPECT_EQ(link.aims()[0], gone);
  EXPECT_EQ(link.aims()[1], endpoint.port());
  known = coordinator.port();
  EXPECT_TRUE(run_until(io, [&] { return link.answered(); }));
  EXPECT_EQ(link.aims().back(), coordinator.port());
}

}  // namespace
}  // namespace ddp::agent
