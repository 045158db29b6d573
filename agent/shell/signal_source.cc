#include "agent/shell/signal_source.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace ddp::agent {
namespace {

constexpr std::size_t kSignals = 65;

// Read by the handler.
std::atomic<pid_t> only_from = 0;
std::array<struct sigaction, kSignals> before{};
static_assert(std::atomic<pid_t>::is_always_lock_free);

void pass_on(int number, siginfo_t* info, void* /*context*/) {
  if (info->si_pid == only_from) before[static_cast<std::size_t>(number)].sa_handler(number);
}

}  // namespace

SignalSource::SignalSource(pid_t source, const std::vector<int>& numbers) {
  only_from = source;
  for (const int number : numbers) {
    struct sigaction& former = before.at(static_cast<std::size_t>(number));
    // What is ignored or has its usual effect stays so.
    if (::sigaction(number, nullptr, &former) != 0 || former.sa_handler == SIG_IGN ||
        former.sa_handler == SIG_DFL || (former.sa_flags & SA_SIGINFO) != 0)
      continue;
    struct sigaction action = former;
    action.sa_sigaction = pass_on;
    action.sa_flags |= SA_SIGINFO;
    if (::sigaction(number, &action, nullptr) == 0) numbers_.push_back(number);
  }
}

SignalSource::~SignalSource() {
  for (const int number : numbers_)
    ::sigaction(number, &before[static_cast<std::size_t>(number)], nullptr);
}

}  // namespace ddp::agent
