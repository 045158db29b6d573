#include "worker/ddp/tensors/stage_thread.h"

#include <stdexcept>
#include <utility>

#include <ATen/Parallel.h>

namespace ddp {

StageThread::StageThread() : thread_([this] { run(); }) {}

void StageThread::post(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    if (stopping_) throw std::logic_error("a model was used after its threads had ended");
    tasks_.push_back(std::move(task));
  }
  posted_.notify_one();
}

void StageThread::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void StageThread::run() {
  // OpenMP counts threads for each thread by itself. LibTorch's libraries ask OpenMP, and would
  // find the number of cores here.
  at::init_num_threads();
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace ddp
