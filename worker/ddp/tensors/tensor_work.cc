#include "worker/ddp/tensors/tensor_work.h"

#include <exception>
#include <utility>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

// Operations whose Work was dropped before they were done, with their memory.
class Abandoned {
 public:
  void add(WorkPtr work, std::vector<at::Tensor> used) {
    const std::lock_guard lock(mutex_);
    entries_.push_back({std::move(work), std::move(used)});
  }

  void sweep() {
    std::vector<Entry> over;  // Freed without the lock: a tensor may run a deleter of its owner's.
    const std::lock_guard lock(mutex_);
    std::vector<Entry> kept;
    for (Entry& entry : entries_) {
      (entry.work->done() ? over : kept).push_back(std::move(entry));
    }
    entries_ = std::move(kept);
  }

 private:
  struct Entry {
    WorkPtr work;
    std::vector<at::Tensor> used;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

Abandoned& abandoned() {
  // Never destroyed: a communication thread may outlive static objects.
  static auto* const instance = new Abandoned;
  return *instance;
}

}  // namespace

TensorWork::TensorWork(WorkPtr work, std::vector<at::Tensor> used, std::vector<Landing> landings)
    : work_(std::move(work)), used_(std::move(used)), landings_(std::move(landings)) {
  abandoned().sweep();
}

TensorWork::~TensorWork() {
  if (!work_->done()) abandoned().add(work_, std::move(used_));
}

bool TensorWork::done() const {
  if (!work_->done()) return false;
  try {
    work_->wait();
    land();
  } catch (const std::exception&) {
    // A failed operation is done, too; wait() throws its cause.
  }
  return true;
}

void TensorWork::wait() {
  work_->wait();
  land();
}

void TensorWork::land() const {
  const std::lock_guard lock(mutex_);
  for (const Landing& landing : landings_) copy_values(landing.to, landing.from);
  landings_.clear();
}

}  // namespace ddp
