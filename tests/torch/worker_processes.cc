#include "tests/torch/worker_processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "agent/process/round_memory.h"
#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "tests/support/server_thread.h"

namespace ddp::test {
namespace {

constexpr std::chrono::seconds kTimeout(60);

struct Child {
  pid_t pid = -1;
  UniqueFd output;  // What its body returned, until the end.
};

void write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(fd, text.data() + done, text.size() - done);
    if (count <= 0) ::_exit(98);
    done += static_cast<std::size_t>(count);
  }
}

// body(fd) writes its result to fd; the process ends when it returns.
Child start(const std::function<void(int)>& body) {
  int ends[2];
  DDP_CHECK(::pipe(ends) == 0, "pipe failed");
  Child child{::fork(), UniqueFd(ends[0])};
  DDP_CHECK(child.pid >= 0, "fork failed");
  UniqueFd write_end(ends[1]);
  if (child.pid > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  body(write_end.get());
  ::_exit(0);
}

std::string read_all(int fd) {
  std::string text;
  char buffer[65536];
  while (true) {
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

void set(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), /*overwrite=*/1);  // NOLINT(concurrency-mt-unsafe): one thread.
}

// The result is the body's with a sign of success before it, or the error's text.
void run_body(int output,
              const std::function<std::string(const std::shared_ptr<ProcessGroup>&)>& body) {
  std::string result;
  try {
    ProcessGroupOptions options;
    options.timeout = kTimeout;
    options.connect_timeout = kTimeout;
    auto group = ProcessGroup::from_environment(options);
    result = "+" + body(group);
    // Nobody leaves before all have what they came for.
    group->barrier()->wait();
  } catch (const std::exception& error) {
    result = std::string("-") + error.what();
  }
  write_all(output, result);
}

int port_of(const Child& server) {
  char digits[16] = {};
  const ssize_t count = ::read(server.output.get(), digits, sizeof digits - 1);
  DDP_CHECK(count > 0, "the store's process said nothing");
  return std::atoi(digits);
}

}  // namespace

std::vector<std::string> run_workers(
    const std::vector<int>& node_sizes,
    const std::function<std::string(const std::shared_ptr<ProcessGroup>&)>& body) {
  const Child store = start([](int output) {
    const ServerThread server;
    write_all(output, std::to_string(server.port()));
    ::pause();
  });
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port_of(store)));
  set("WORLD_SIZE", std::to_string(std::accumulate(node_sizes.begin(), node_sizes.end(), 0)));
  set("GROUP_WORLD_SIZE", std::to_string(node_sizes.size()));
  set("DDP_ROUND", "0");
  set("TORCHELASTIC_RUN_ID", "test");

  std::vector<Child> children;
  std::vector<std::unique_ptr<agent::RoundMemory>> memory;
  for (std::size_t node = 0; node < node_sizes.size(); ++node) {
    memory.push_back(agent::RoundMemory::create(node_sizes[node], 0).value());
    set("DDP_SHM_FD", std::to_string(memory.back()->fd()));
    set("GROUP_RANK", std::to_string(node));
    set("LOCAL_WORLD_SIZE", std::to_string(node_sizes[node]));
    for (int local_rank = 0; local_rank < node_sizes[node]; ++local_rank) {
      set("LOCAL_RANK", std::to_string(local_rank));
      set("RANK", std::to_string(children.size()));
      children.push_back(start([&](int output) { run_body(output, body); }));
    }
  }

  std::vector<std::string> results;
  for (const Child& child : children) {
    std::string result = read_all(child.output.get());
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    const bool succeeded = !result.empty() && result[0] == '+' && status == 0;
    EXPECT_TRUE(succeeded) << "rank " << results.size() << " ended with status " << status << ": "
                           << (succeeded ? "" : result);
    results.push_back(succeeded ? result.substr(1) : std::string());
  }
  ::kill(store.pid, SIGKILL);
  ::waitpid(store.pid, nullptr, 0);
  return results;
}

}  // namespace ddp::test
