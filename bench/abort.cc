#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/samples.h"
#include "tests/support/inproc.h"
#include "worker/runtime/group.h"

// Measures the time from a signal to a rank until the last survivor has its error. The last rank is
// the victim; ranks are processes of one node. Prints a JSON line with all times.
namespace ddp::bench {
namespace {

namespace po = boost::program_options;

constexpr std::size_t kLargeElements = std::size_t{16} << 20;  // 64 MiB: tens of milliseconds.
constexpr std::chrono::seconds kTimeout{60};
constexpr std::chrono::seconds kGiveUp{90};

struct Case {
  int ranks = 2;
  std::string phase;
  int signal = SIGKILL;
  std::size_t resident = 0;  // Bytes that the victim has touched beside its buffers.
  int turns = 1;
};

// What a rank reports to the parent.
struct Account {
  std::atomic<int> ready{0};
  std::atomic<std::int64_t> told_ns{0};
};

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void touch(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for the victim");
  // Small pages, because the kernel takes longest to free them.
  ::madvise(memory, bytes, MADV_NOHUGEPAGE);
  for (std::size_t at = 0; at < bytes; at += 4096) static_cast<volatile char*>(memory)[at] = 1;
}

// Runs operations until one fails.
void run_phase(ProcessGroup& group, const Case& what, std::vector<float>& values) {
  const bool victim = group.rank() == what.ranks - 1;
  const Buffer buffer{values.data(), values.size(), DType::kF32};
  for (;;) {
    if (what.phase == "before" && victim) ::pause();
    if (what.phase == "barrier") {
      group.barrier()->wait();
    } else if (what.phase == "broadcast") {
      group.broadcast(buffer, what.ranks - 1)->wait();
    } else {
      group.all_reduce(buffer, ReduceOp::kSum)->wait();
    }
  }
}

int be_rank(std::unique_ptr<transport::Transport> transport, const Case& what, Account& account) {
  ProcessGroupOptions options;
  options.timeout = kTimeout;
  const bool victim = transport->topology().rank() == what.ranks - 1;
  const std::shared_ptr<ProcessGroup> group =
      runtime::Group::make(std::move(transport), 0, options);
  if (victim) touch(what.resident);
  std::vector<float> values(kLargeElements, 0.0F);
  try {
    group->barrier()->wait();
    account.ready = 1;
    run_phase(*group, what, values);
  } catch (const CollectiveError& error) {
    account.told_ns = now_ns();
    const bool right = error.suspect_rank == what.ranks - 1;
    if (!right) std::cerr << "bench-abort: the wrong rank is suspected: " << error.what() << "\n";
    return right ? 0 : 1;
  }
  return 1;
}

bool reached(const std::vector<Account*>& accounts, const auto& field) {
  const auto limit = std::chrono::steady_clock::now() + kGiveUp;
  while (
      !std::all_of(accounts.begin(), accounts.end(), [&](Account* each) { return field(*each); })) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Milliseconds.
double take_turn(const Case& what, std::mt19937& random) {
  const auto ranks = static_cast<std::size_t>(what.ranks);
  void* memory = ::mmap(nullptr, ranks * sizeof(Account), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap");
  std::vector<Account*> accounts;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    accounts.push_back(new (static_cast<Account*>(memory) + rank) Account);
  auto transports = ddp::test::make_inproc_transports({what.ranks}, 0);
  std::vector<pid_t> pids;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("fork");
    if (pid == 0) {
      auto own = std::move(transports[rank]);
      transports.clear();
      ::_exit(be_rank(std::move(own), what, *accounts[rank]));
    }
    pids.push_back(pid);
  }
  const bool ready = reached(accounts, [](Account& each) { return each.ready != 0; });
  std::this_thread::sleep_for(std::chrono::microseconds(10'000 + random() % 30'000));
  const std::int64_t begin = now_ns();
  ::kill(pids.back(), what.signal);
  accounts.pop_back();
  const bool told = ready && reached(accounts, [](Account& each) { return each.told_ns != 0; });
  double longest = 0;
  for (const Account* each : accounts)
    longest = std::max(longest, static_cast<double>(each->told_ns - begin) / 1e6);
  ::kill(pids.back(), SIGKILL);
  bool right = told;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    int status = 0;
    if (!told) ::kill(pids[rank], SIGKILL);
    ::waitpid(pids[rank], &status, 0);
    right = right && (rank + 1 == ranks || status == 0);
  }
  ::munmap(memory, ranks * sizeof(Account));
  if (!right) throw std::runtime_error("a survivor did not get the right error");
  return longest;
}

Case parse(int argc, char** argv) {
  Case what;
  std::string signal;
  std::size_t resident_mib = 0;
  po::options_description flags("bench-abort");
  flags.add_options()("ranks", po::value(&what.ranks)->default_value(2))(
      "phase", po::value(&what.phase)->default_value("all_reduce"),
      "before, all_reduce, barrier or broadcast")(
      "signal", po::value(&signal)->default_value("kill"), "kill or stop")(
      "resident-mib", po::value(&resident_mib)->default_value(16))(
      "turns", po::value(&what.turns)->default_value(10));
  po::variables_map values;
  po::store(po::parse_command_line(argc, argv, flags), values);
  po::notify(values);
  what.signal = signal == "stop" ? SIGSTOP : SIGKILL;
  what.resident = resident_mib << 20;
  return what;
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  try {
    const auto what = ddp::bench::parse(argc, argv);
    std::mt19937 random(std::random_device{}());
    std::vector<double> times;
    for (int turn = 0; turn < what.turns; ++turn)
      times.push_back(ddp::bench::take_turn(what, random));
    fmt::print("{{\"times_ms\": [{:.4f}]}}\n", fmt::join(times, ", "));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "bench-abort: " << error.what() << "\n";
    return 1;
  }
}
