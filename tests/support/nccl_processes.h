#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "common/store/tcp_store.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/nccl_world.h"
#include "tests/support/process.h"
#include "tests/support/server_thread.h"

// Ranks that are processes over the real NCCL. CUDA cannot be used in a process that was forked
// after its first use, so the test itself must not use it.
namespace ddp::test {

// A value that this process shares with those that it forks later.
template <typename T>
class Shared {
 public:
  Shared() {
    void* memory =
        ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    DDP_CHECK(memory != MAP_FAILED, "mmap");
    value_ = new (memory) T();
  }
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

// One rank, and what it makes its groups of.
class NcclRank {
 public:
  NcclRank(std::shared_ptr<const NcclLibrary> of, Rank own, int all, int used,
           std::function<std::shared_ptr<Store>()> connect)
      : library(std::move(of)), rank(own), size(all), device(used), connect_(std::move(connect)) {
    library->cuda().set_device(device);
  }

  const std::shared_ptr<const NcclLibrary> library;
  const Rank rank;
  const int size;
  const int device;
  cuda::Stream stream = nullptr;  // What the groups take for the caller's current stream.

  // The ranks hear of failures through the store alone.
  std::shared_ptr<NcclGroup> group(const Tweak& tweak = {}) {
    NcclGroupOptions options = nccl_options(rank, size);
    options.device = device;
    options.current_stream = [this] { return stream; };
    options.abort_store = connect_();
    options.abort_interval = std::chrono::milliseconds(20);
    if (tweak) tweak(options);
    return NcclGroup::make(library, connect_(), options);
  }

 private:
  const std::function<std::shared_ptr<Store>()> connect_;
};

// The number of devices, asked by a process of its own.
inline Result<int> device_count_in_child(const NcclLibrary& library) {
  struct Answer {
    int count = -1;
    char reason[500] = "";
  };
  const Shared<Answer> answer;
  const auto child = start_ranks(1, [&](Rank) {
    const auto count = library.device_count();
    if (count) {
      answer->count = *count;
    } else {
      fmt::format_to_n(answer->reason, sizeof(answer->reason) - 1, "{}", count.error().message);
    }
    return 0;
  });
  expect_all(child);
  if (answer->count < 0) return make_error(Errc::kNotFound, "{}", answer->reason);
  return answer->count;
}

// Runs body on `size` processes, and returns their exit statuses: 0 if no expectation has failed.
inline std::vector<int> run_processes(const std::shared_ptr<const NcclLibrary>& library,
                                      int devices, int size,
                                      const std::function<void(NcclRank&)>& body) {
  using std::chrono::seconds;
  const Shared<std::atomic<int>> port;
  const auto run_rank = [&](Rank rank) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto text = fmt::format("rank {} of {}", rank, size);
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, text);
    wait_until([&] { return *port != 0; });
    // NCCL takes ranks with different names for ranks on different machines, and only those may
    // share a device.
    if (devices < size) ::setenv("NCCL_HOSTID", text.c_str(), 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    ::setenv("NCCL_IB_DISABLE", "1", 1);
    try {
      NcclRank own(library, rank, size, rank % devices, [&] {
        return std::shared_ptr<Store>(connect_tcp_store("127.0.0.1", *port, seconds(30)).value());
      });
      body(own);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    std::fflush(nullptr);
    return ::testing::Test::HasFailure() ? 1 : 0;
  };
  std::fflush(nullptr);  // So that the children do not write this process's buffers, too.
  const auto children = start_ranks(size, run_rank);
  const ServerThread server;  // Its thread starts after the fork.
  *port = server.port();
  std::vector<int> statuses;
  for (const pid_t child : children) statuses.push_back(reap(child, seconds(150)));
  return statuses;
}

}  // namespace ddp::test
