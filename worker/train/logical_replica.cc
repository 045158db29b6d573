#include "worker/train/logical_replica.h"

#include <cstddef>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "worker/ddp/averaging/clip_grad.h"
#include "worker/ddp/averaging/distributed_optimizer.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp::train {
namespace {

void copy_all(const std::vector<at::Tensor>& from, std::vector<at::Tensor>& to) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (to.size() == i) to.push_back(at::empty_like(from[i]));
    copy_values(to[i], from[i]);
  }
}

}  // namespace

LogicalReplica::LogicalReplica(const std::string& comm_hook, std::shared_ptr<Model> model,
                               torch::optim::Optimizer& optimizer,
                               const std::shared_ptr<ProcessGroup>& group, LogicalRanks& ranks)
    : Replica(comm_hook, optimizer, group),
      model_(std::move(model)),
      ranks_(ranks),
      reducer_(*model_, group, ranks.size()),
      buffers_(model_->buffers()),
      broadcast_(buffers_) {
  broadcast_master_param(*model_, *group);
}

void LogicalReplica::zero_grad() {
  model_->zero_grad(/*set_to_none=*/true);
  reducer_.restart();
  is_reduced_ = false;
}

void LogicalReplica::begin(Rank logical) {
  if (logical != own().begin) {
    copy_all(before_, buffers_);
  } else if (own().size() > 1) {
    copy_all(buffers_, before_);
  }
  ranks_.enter(logical);
}

void LogicalReplica::end(Rank logical) {
  ranks_.leave(logical);
  if (logical == 0 && own().size() > 1) copy_all(buffers_, first_);
  reducer_.add();
}

void LogicalReplica::reduce() {
  if (!std::exchange(is_reduced_, true)) reducer_.reduce();
}

double LogicalReplica::clip_grad_norm(double max_norm) {
  reduce();
  return clip_grad_norm_(model_->parameters(), max_norm);
}

void LogicalReplica::local_step() {
  reduce();
  optimizer().step();
  settle_buffers();
}

void LogicalReplica::settle_buffers() {
  if (buffers_.empty()) return;
  if (own().begin == 0 && own().size() > 1) copy_all(first_, buffers_);
  if (group().size() > 1) broadcast_.run(group(), 0, "buffers");
}

}  // namespace ddp::train
