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

}  // namespace

void set_stack_signal(int number) { stack_signal = number; }

bool has_agent() { return process_variable("DDP_CONTROL_FD").has_value(); }

ElasticWorker& process_worker(bool goes_on) {
  static std::mutex mutex;
  static ElasticWorker* worker = nullptr;  // Never destroyed: the process's end is its end.
  static bool said_so = false;
  const std::lock_guard lock(mutex);
  if (worker == nullptr) {
    ElasticWorkerOptions options;
    options.reconfigurable = goes_on;
    options.given_up = [] { return has_signal(); };
    options.on_abort = [goes_on] { end_requests(goes_on); };
    options.stack_signal = stack_signal;
    worker = new ElasticWorker(options);
    said_so = goes_on;
  }
  if (goes_on && !said_so) {
    throw std::logic_error(
        "this process has told its agent that it does not survive a round; make the ElasticState "
        "before the first call of progress() or checkpoint_requested()");
  }
  return *worker;
}

}  // namespace ddp::python
