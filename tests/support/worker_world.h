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
#include "common/store/hash_store.h"
#include "worker/runtime/group.h"
#include "worker/runtime/node_links.h"
#include "worker/transport/inproc.h"

// Process groups whose ranks are threads of the test or processes that it forks. Nodes are given by
// their sizes: {2, 1} are ranks 0 and 1 on one node and rank 2 on another.
namespace ddp::test {

enum class LinkKind { kSocketPair, kTcp };

inline int world_size_of(const std::vector<int>& nodes) {
  return std::accumulate(nodes.begin(), nodes.end(), 0);
}

// Runs body(rank) on a thread per rank. What escapes fails the test.
inline void on_ranks(int world_size, const std::function<void(Rank)>& body) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([rank, &body] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline ProcessGroupOptions options_of(std::chrono::milliseconds timeout) {
  ProcessGroupOptions options;
  options.timeout = timeout;
  return options;
}

// Element r is rank r's transport.
inline std::vector<std::unique_ptr<Transport>> connected_transports(const std::vector<int>& nodes,
                                                                    LinkKind kind,
                                                                    Round round = 0) {
  if (kind == LinkKind::kSocketPair) return std::move(make_inproc_transports(nodes, round)).value();
  HashStore store;
  std::vector<std::shared_ptr<Segment>> segments;
  for (const int size : nodes) segments.push_back(std::move(Segment::create(size, round)).value());
  const int world_size = world_size_of(nodes);
  std::vector<std::unique_ptr<Transport>> transports(static_cast<std::size_t>(world_size));
  on_ranks(world_size, [&](Rank rank) {
    const Topology place(nodes, rank);
    WorkerEnvironment worker;
    worker.rank = rank;
    worker.world_size = world_size;
    worker.local_rank = place.local_rank();
    worker.local_size = place.local_size();
    worker.node = place.node();
    worker.nodes = place.nodes();
    worker.round = round;
    NodeLinks links(store, "test", worker, Clock::now() + std::chrono::seconds(30));
    auto failure = links.connect({"127.0.0.1"}, segments[static_cast<std::size_t>(place.node())],
                                 transports[static_cast<std::size_t>(rank)]);
    DDP_CHECK(!failure, "{}", failure->text);
  });
  return transports;
}

// Element r is rank r's group.
inline std::vector<std::shared_ptr<ProcessGroup>> thread_groups(
    const std::vector<int>& nodes, LinkKind kind = LinkKind::kSocketPair,
    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (auto& transport : connected_transports(nodes, kind)) {
    groups.push_back(Group::make(std::move(transport), 0, options_of(timeout)));
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

// Forks a process per rank that runs body(group) and exits with what it returns; 99 after an
// exception, which is printed. Call it before the test starts any thread. The caller reaps the
// processes.
inline std::vector<pid_t> fork_ranks(
    const std::vector<int>& nodes,
    const std::function<int(const std::shared_ptr<ProcessGroup>&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(60),
    std::vector<std::shared_ptr<Segment>> segments = {}) {
  auto transports = std::move(make_inproc_transports(nodes, 0, std::move(segments))).value();
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
      status = body(Group::make(std::move(own), 0, options_of(timeout)));
    } catch (const std::exception& error) {
      // Not a stream: the parent's may be locked by a thread that does not exist here.
      const std::string text = "rank " + std::to_string(rank) + ": " + error.what() + "\n";
      (void)!::write(STDERR_FILENO, text.data(), text.size());
    }
    ::_exit(status);
  }
  return children;
}

// Waits for the process until `limit`; its exit status, 128 + the signal that ended it, or -1 after
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
