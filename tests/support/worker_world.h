#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/check.h"
#include "common/base/secret.h"
#include "tests/support/data_streams.h"
#include "tests/support/hash_store.h"
#include "tests/support/inproc.h"
#include "tests/support/on_ranks.h"
#include "worker/runtime/group.h"
#include "worker/runtime/node_links.h"
#include "worker/transport/link_guard.h"

// Process groups whose ranks are threads of the test, or processes that it forks. Nodes are given
// by their sizes: {2, 1} means ranks 0 and 1 on one node and rank 2 on another.
namespace ddp::test {

enum class LinkKind { kSocketPair, kTcp, kUcx, kProven, kEncrypted };

inline const char* name_of(LinkKind kind) {
  static constexpr const char* kNames[] = {"pair", "tcp", "ucx", "proven", "encrypted"};
  return kNames[static_cast<int>(kind)];
}

// The reason why tests cannot use such links here; empty if they can.
inline std::string links_missing(LinkKind kind) {
  return kind == LinkKind::kUcx ? engine_missing(EngineKind::kUcx) : std::string();
}

inline int world_size_of(const std::vector<int>& nodes) {
  return std::accumulate(nodes.begin(), nodes.end(), 0);
}

inline ProcessGroupOptions options_of(std::chrono::milliseconds timeout) {
  ProcessGroupOptions options;
  options.timeout = timeout;
  return options;
}

// With a key of 32 bytes.
inline std::shared_ptr<const transport::LinkGuard> guard_of(LinkKind kind, char key = 'k') {
  const Secret secret(std::string(32, key));
  if (kind == LinkKind::kProven) return transport::LinkGuard::proving(secret).value();
  if (kind == LinkKind::kEncrypted) return transport::LinkGuard::encrypting(secret).value();
  return nullptr;
}

inline runtime::Meeting local_meeting(std::shared_ptr<Store> store = std::make_shared<HashStore>(),
                                      LinkKind kind = LinkKind::kTcp) {
  runtime::Meeting meeting;
  meeting.guard = guard_of(kind);
  meeting.store = std::move(store);
  meeting.prefix = "test";
  meeting.addresses = {"127.0.0.1"};
  return meeting;
}

// Connects ranks through a store. Element r is rank r's transport.
inline std::vector<std::unique_ptr<transport::Transport>> connected_transports(
    const std::vector<int>& nodes, const runtime::Meeting& meeting, Round round = 0) {
  std::vector<std::shared_ptr<transport::Segment>> segments;
  for (const int size : nodes) segments.push_back(std::move(make_segment(size, round)).value());
  const int world_size = world_size_of(nodes);
  std::vector<std::unique_ptr<transport::Transport>> transports(
      static_cast<std::size_t>(world_size));
  on_ranks(world_size, [&](Rank rank) {
    transport::Topology place(nodes, rank);
    runtime::Meeting own = meeting;
    own.in_use = std::make_shared<std::mutex>();
    transport::LaneLinks links;
    runtime::NodeLinks node_links(own, world_size, round, Clock::now() + std::chrono::seconds(30));
    const auto failure = node_links.connect(place, links);
    DDP_CHECK(!failure, "{}", failure->text);
    auto segment = segments[static_cast<std::size_t>(place.node())];
    auto arena = std::make_shared<transport::Arena>(segment->mapping(), place.local_rank());
    transports[static_cast<std::size_t>(rank)] = std::make_unique<transport::Transport>(
        std::move(place), std::move(segment), std::move(arena), std::move(links),
        transport::spinning_pays(world_size));
  });
  return transports;
}

// Element r is rank r's transport.
inline std::vector<std::unique_ptr<transport::Transport>> connected_transports(
    const std::vector<int>& nodes, LinkKind kind = LinkKind::kSocketPair, Round round = 0) {
  if (kind == LinkKind::kSocketPair) return make_inproc_transports(nodes, round);
  runtime::Meeting meeting = local_meeting(std::make_shared<HashStore>(), kind);
  if (kind == LinkKind::kUcx) meeting.engine = EngineKind::kUcx;
  return connected_transports(nodes, meeting, round);
}

// Element r is rank r's group.
inline std::vector<std::shared_ptr<ProcessGroup>> thread_groups(
    const std::vector<int>& nodes, LinkKind kind = LinkKind::kSocketPair,
    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  // Messages and subgroups use it to connect, whatever the links of the group are.
  const auto store = std::make_shared<HashStore>();
  for (auto& transport : connected_transports(nodes, kind)) {
    groups.push_back(runtime::Group::make(std::move(transport), 0, options_of(timeout),
                                          local_meeting(store, kind)));
  }
  return groups;
}

// Makes the groups and runs body(group) on a thread per rank.
inline void with_groups(const std::vector<int>& nodes,
                        const std::function<void(ProcessGroup&)>& body,
                        LinkKind kind = LinkKind::kSocketPair,
                        std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  auto groups = thread_groups(nodes, kind, timeout);
  on_ranks(world_size_of(nodes), [&](Rank rank) { body(*groups[static_cast<std::size_t>(rank)]); });
}

// Forks a process per rank that runs body(its transport) and exits with the result, or with 99
// after an exception, which it prints. Call it before the test starts any thread. The caller reaps
// the processes.
inline std::vector<pid_t> fork_transports(
    const std::vector<int>& nodes,
    const std::function<int(std::unique_ptr<transport::Transport>)>& body,
    std::vector<std::shared_ptr<transport::Segment>> segments = {}) {
  auto transports = make_inproc_transports(nodes, 0, std::move(segments));
  std::vector<pid_t> children;
  for (std::size_t rank = 0; rank < transports.size(); ++rank) {
    const pid_t child = ::fork();
    DDP_CHECK(child >= 0, "fork failed");
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    int status = 99;
    try {
      auto own = std::move(transports[rank]);
      transports.clear();
      status = body(std::move(own));
    } catch (const std::exception& error) {
      // Not std::cerr: a thread of the parent, which does not exist here, may hold its lock.
      const std::string text = "rank " + std::to_string(rank) + ": " + error.what() + "\n";
      (void)!::write(STDERR_FILENO, text.data(), text.size());
    }
    ::_exit(status);
  }
  return children;
}

// The same with body(group).
inline std::vector<pid_t> fork_ranks(
    const std::vector<int>& nodes,
    const std::function<int(const std::shared_ptr<ProcessGroup>&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(60),
    std::vector<std::shared_ptr<transport::Segment>> segments = {}) {
  return fork_transports(
      nodes,
      [&](std::unique_ptr<transport::Transport> own) {
        return body(runtime::Group::make(std::move(own), 0, options_of(timeout)));
      },
      std::move(segments));
}

// Waits for the process until `limit`. Returns its exit status, 128 + its signal, or -1 after
// killing it because it did not end.
inline int reap(pid_t child, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace ddp::test
