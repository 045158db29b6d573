#include "worker/python/native/requests.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <optional>

#include "worker/python/native/process_worker.h"

namespace ddp::python {
namespace {

struct Requests {
  std::mutex mutex;
  std::optional<CheckpointRequests> requests;
  std::optional<CheckpointRequests::Listening> listening;
  bool over = false;  // The process does not go on.
};

// Never destroyed: its destructor would handle a SIGTERM of the process's last moments.
Requests& all() {
  static Requests& one = *new Requests;
  return one;
}

std::atomic<pid_t> reads_for = 0;  // leave_requests_to(); for the handler.
static_assert(std::atomic<pid_t>::is_always_lock_free);

void end_if_worker_wants_it(int /*signal*/, siginfo_t* info, void* /*context*/) {
  if (info->si_pid == reads_for || ::kill(reads_for, 0) != 0) ::_exit(0);
}

}  // namespace

CheckpointRequests::Asked own_request(bool catches_usr1, bool catches_term) {
  ControlChannel& channel = process_channel();
  Requests& own = all();
  const std::lock_guard lock(own.mutex);
  if (!own.requests) own.requests.emplace(channel, catches_usr1);
  if (catches_term && !own.listening && !own.over) own.listening.emplace(*own.requests);
  return own.requests->own();
}

bool take_stop_request() {
  Requests& own = all();
  const std::lock_guard lock(own.mutex);
  return own.listening && own.requests->take_stop();
}

void end_requests(bool goes_on) {
  Requests& own = all();
  const std::lock_guard lock(own.mutex);
  own.over = !goes_on;
  own.listening.reset();
}

void leave_requests_to(pid_t worker) {
  reads_for = worker;
  struct sigaction action = {};
  action.sa_sigaction = end_if_worker_wants_it;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction former = {};
  ::sigaction(SIGUSR1, nullptr, &former);
  if (former.sa_handler == SIG_DFL) ::signal(SIGUSR1, SIG_IGN);
}

}  // namespace ddp::python
