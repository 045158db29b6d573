#include "worker/ddp/tensors/works.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace ddp {
namespace {

class JoinedWork final : public Work {
 public:
  explicit JoinedWork(std::vector<WorkPtr> works) : works_(std::move(works)) {}

  bool done() const override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const WorkPtr& work) { return work->done(); });
  }

  void wait() override {
    std::exception_ptr first;
    for (const WorkPtr& work : works_) {
      try {
        work->wait();
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
    if (first) std::rethrow_exception(first);
  }

  void start() override {
    for (const WorkPtr& work : works_) work->start();
  }

 private:
  std::vector<WorkPtr> works_;
};

}  // namespace

WorkPtr join_works(std::vector<WorkPtr> works) {
  std::erase(works, nullptr);
  if (works.size() == 1) return std::move(works.front());
  return std::make_shared<JoinedWork>(std::move(works));
}

}  // namespace ddp
