#include "worker/python/native/process_worker.h"

#include <atomic>
#include <mutex>
#include <stdexcept>

#include "worker/python/native/interpreter.h"
#include "worker/python/native/requests.h"
#include "worker/runtime/worker_environment.h"

namespace ddp::python {
namespace {

std::atomic<int> stack_signal = 0;

std::mutex making;
std::atomic<ElasticWorker*> made = nullptr;  // Never destroyed: the process's end is its end.
bool said_so = false;                        // That this process goes on. Under `making`.

}  // namespace

void set_stack_signal(int number) { stack_signal = number; }

ElasticWorker& process_worker(bool goes_on) {
  const std::lock_guard lock(making);
  if (made == nullptr) {
    ElasticWorkerOptions options;
    options.reconfigurable = goes_on;
    options.given_up = [] { return has_signal(); };
    options.on_abort = [goes_on] { end_requests(goes_on); };
    options.stack_signal = stack_signal;
    made = new ElasticWorker(options);
    said_so = goes_on;
  }
  if (goes_on && !said_so) {
    throw std::logic_error(
        "this process has told its agent that it does not survive a round; make the ElasticState "
        "before the first call of progress() or checkpoint_requested()");
  }
  return *made;
}

ControlChannel& process_channel() {
  if (process_variable("DDP_CONTROL_FD")) return process_worker(false).channel();
  static ControlChannel* const none = ControlChannel::from_environment({}).release();
  return *none;
}

ElasticWorker* made_worker() { return made; }

}  // namespace ddp::python
