#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/buckets/plan.h"
#include "worker/buckets/progress.h"
#include "worker/ddp/module_state.h"
#include "worker/runtime/process_group.h"

namespace torch::autograd {
struct Node;
}

namespace ddp {

struct ReducerOptions {
  BucketLimits limits;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
};

// Averages gradients over the group while backward goes on.
//
// A hook on every parameter copies its gradient into a bucket as soon as it is computed; buckets
// lie in the group's registered memory, where they are reduced without another copy. A full bucket
// is reduced on the group's communication thread, in an order that all ranks share. At the end of
// backward, inside the call of backward(), the reducer waits for all buckets and writes the
// averages to .grad. So when backward() returns, every .grad is the average over the ranks of what
// .grad would be without the reducer, earlier accumulation included.
//
// A parameter that got no gradient in this backward nor in one without synchronisation before it is
// an error that names it, unless find_unused_parameters is set: then it counts as its present
// .grad, or zero, on this rank, and where no rank used it .grad stays as it is (undefined, if it
// was).
//
// If a rank's backward ends by an exception, its group is aborted, so that the others do not wait
// for the rest of its buckets. The reducer itself begins the next backward from a clean state.
//
// In a group of one gradients are neither copied nor sent; only missing ones are detected.
//
// One reducer a module, one backward at a time: a second one on another thread, or one nested in
// the first, throws std::logic_error. Gradients computed with create_graph are averaged but their
// graph is not. torch::autograd::grad does not run hooks, so what it returns is local. The reducer
// must outlive every backward through its parameters that has begun.
class Reducer {
 public:
  // The parameters, in the order of definition, all requiring a gradient, dense, on the CPU,
  // of a floating-point type; std::invalid_argument names the one that is not.
  Reducer(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group,
          ReducerOptions options);
  // Removes the hooks. If a backward was abandoned half-way, waits for what it has in flight in the
  // aborted group.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Whether the next backward reduces. Returns what it was. Not during a backward.
  bool set_require_sync(bool require_sync);

  // How many backwards have reduced all gradients.
  std::uint64_t synced_passes() const { return synced_passes_; }

  // Sets defined gradients to zero, keeping them where they are; with set_to_none, makes them
  // undefined.
  void zero_grad(bool set_to_none);

  const std::vector<BucketLayout>& buckets() const { return layouts_; }

 private:
  // One backward that synchronises. Owned by autograd's record of that backward, which dies at the
  // latest when backward() returns or throws: that is how an abandoned one is noticed.
  struct Pass;

  struct Parameter {
    NamedTensor named;
    at::Tensor slot;  // Its part of the bucket.
    std::size_t bucket = 0;
    std::shared_ptr<torch::autograd::Node>
        node;  // Tensors hold their AccumulateGrad weakly; without it the hook dies.
    std::uintptr_t hook = 0;
    bool used = false;       // Since the last synchronised backward.
    at::Tensor before_pass;  // Its .grad, kept if the bucket overwrites it and no rank may turn out
                             // to use it.
  };

  struct Bucket {
    at::Tensor flat;
    std::string tag;
    WorkPtr work;
  };

  void make_buckets();
  void add_hook(std::size_t index);
  void on_gradient(std::size_t index);
  void enter_pass();
  void begin_pass(const void* graph);
  void finish_pass(Pass& pass);
  void stage(std::size_t index);
  void stage_unused();
  void launch_ready_buckets();
  void check_nothing_missing();
  WorkPtr reduce_used_flags();
  void publish_bucket(std::size_t bucket, bool flags_known);
  void publish(Parameter& parameter, bool used_somewhere);
  void drain();
  void abort(const std::string& reason);
  bool alone() const { return group_->size() == 1; }

  std::shared_ptr<ProcessGroup> group_;
  ReducerOptions options_;
  std::vector<Parameter> parameters_;
  std::vector<BucketLayout> layouts_;
  std::vector<Bucket> buckets_;
  std::vector<std::uint8_t> used_flags_;  // By parameter, after the exchange: some rank used it.

  // Hooks may come from several of autograd's threads, one at a time for each device.
  std::mutex mutex_;
  bool require_sync_ = true;
  std::weak_ptr<Pass> pass_;
  bool in_pass_ = false;  // Between the first hook and the end; true with pass_ expired: abandoned.
  BucketProgress progress_;
  std::uint64_t synced_passes_ = 0;
};

}  // namespace ddp
