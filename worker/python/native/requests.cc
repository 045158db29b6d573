#include "worker/python/native/requests.h"

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

}  // namespace ddp::python
