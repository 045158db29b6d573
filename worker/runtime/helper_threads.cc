#include "worker/runtime/helper_threads.h"

#include <atomic>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

namespace ddp::runtime {
namespace {

struct Helper {
  std::atomic<bool> done{false};
  std::thread thread;
};

}  // namespace

void run_on_helper_thread(std::function<void()> task) {
  // Never destroyed: the destructor of a running std::thread ends the process.
  static auto& mutex = *new std::mutex;
  static auto& helpers = *new std::list<Helper>;
  const std::lock_guard lock(mutex);
  helpers.remove_if([](Helper& helper) {
    if (!helper.done) return false;
    helper.thread.join();
    return true;
  });
  Helper& helper = helpers.emplace_back();
  helper.thread = std::thread([&helper, body = std::move(task)] {
    body();
    helper.done = true;
  });
}

}  // namespace ddp::runtime
