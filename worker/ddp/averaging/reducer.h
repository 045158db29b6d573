#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/buckets/bucket_progress.h"
#include "worker/buckets/pieces.h"
#include "worker/buckets/plan.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/gradient_buckets.h"
#include "worker/ddp/averaging/join_calls.h"
#include "worker/ddp/averaging/pass_timer.h"
#include "worker/ddp/averaging/reduced_parameters.h"
#include "worker/ddp/averaging/reduction_plan.h"
#include "worker/ddp/tensors/compat.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/runtime/process_group.h"

namespace ddp {

struct ReducerOptions {
  ReductionPlanner::Options plan;
  bool find_unused_parameters = false;
  bool skip_all_reduce_unused_params = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
  bool batched_grad_copy = false;
  bool rebuild_buckets = true;
  BucketNames bucket_layout;  // If not empty, the buckets from the first step on, for good.
  // Without, every bucket is reduced in one piece.
  std::optional<buckets::PieceLimits> pieces = buckets::PieceLimits{};
  // Runs at the end of every backward, also of those without synchronisation, before gradients are
  // written. May give parameters another type; gradients get theirs.
  std::function<void()> after_backward;
  // For parameters on other devices: see BucketRoute.
  std::vector<DeviceGroup> device_groups = {};
};

// Averages gradients over the group while backward goes on.
//
// A hook on every parameter copies its gradient into a bucket as soon as it is computed; buckets
// lie in the group's registered memory, where they are reduced without another copy. A full bucket,
// or a piece of one (worker/buckets/pieces.h), is reduced on the group's communication thread, in
// an order that all ranks share. At the end of backward, inside the call of backward(), the reducer
// waits for all buckets and writes the averages to .grad. So when backward() returns, every .grad
// is the average over the ranks of what .grad would be without the reducer, earlier accumulation
// included.
//
// Buckets. The first backward has them in the reverse order of definition. At its end they are
// rebuilt, once, in the order in which gradients arrived on rank 0, unless a layout was given or
// rebuild_buckets is off. Results do not depend on the layout. PyTorch does not rebuild buckets
// with find_unused_parameters. We do: rank 0's order is as good as any, and unused parameters move
// behind the used ones, where they delay nothing.
//
// A parameter that got no gradient in this backward nor in one without synchronisation before it is
// an error that names it, unless find_unused_parameters is set: then it counts as its present
// .grad, or zero, on this rank, and where no rank used it .grad stays as it is (undefined, if it
// was). With skip_all_reduce_unused_params a bucket that no rank used is not sent; the ranks must
// use the same parameters then.
//
// static_graph: every backward gives every parameter as many gradients as the first one did. What
// is not used is found once. A parameter may get several gradients in one backward (parts of the
// module that run again in backward); it is reduced after the last of them. The first backward
// reduces at its end. What differs later is an error that names the parameter.
//
// A communication hook (register_comm_hook) replaces the averaging of dense buckets; nothing is
// divided then. It also runs in a group of one. Buckets of sparse gradients and of delayed
// parameters do not go through it.
//
// Devices. Parameters may lie on any devices, those of one module on several; each has buckets of
// its own. On the CPU these are in the group's registered memory. Buckets on other devices travel
// over a group for the device's memory, or through host memory (see BucketRoute). What ranks have
// to agree on goes over `group`, which is for host memory. Backward then runs on a thread of each
// device, and any of them may call the reducer. Results are waited for on the host, so they are
// there for every stream of a device when backward() returns.
//
// If a rank's backward ends with an exception, its group is aborted, so that the others do not wait
// for the rest of its buckets. The reducer itself begins the next backward from a clean state.
//
// In a group of one without a hook gradients are neither copied nor sent; only missing ones are
// detected.
//
// A module may have one reducer; with two, the backward throws std::logic_error naming a shared
// parameter. One backward at a time: a second one on another thread, or one nested in the first,
// throws std::logic_error, except for nested ones with static_graph (watch_outputs). Gradients
// computed with create_graph are averaged but their graph is not. torch::autograd::grad does not
// run hooks, so what it returns is local. The reducer must outlive every backward through its
// parameters that has begun.
class Reducer {
 public:
  // The parameters are in the order of definition. Each must require a gradient, be dense and have
  // a floating-point type; otherwise throws std::invalid_argument naming it. `group` is for host
  // memory.
  Reducer(std::vector<NamedTensor> parameters, std::shared_ptr<ProcessGroup> group,
          ReducerOptions options);
  // Removes the hooks. If a backward was abandoned half-way, waits for what it has in flight in the
  // aborted group.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Call it once, with the same hook on all ranks, not during a backward; otherwise it throws
  // std::logic_error.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  // Never rebuilds the buckets. Call it on all ranks; throws std::logic_error after a backward.
  void keep_buckets();

  // Whether the next backward reduces. Returns what it was. Not during a backward.
  bool set_require_sync(bool require_sync);
  bool require_sync() const { return require_sync_; }

  // A backward through one of these tensors begins this module's backward, so that all backwards
  // nested in it belong to it. Skips tensors without a graph. The tensors may outlive the reducer.
  void watch_outputs(const std::vector<at::Tensor>& outputs);

  // Checks that parameters have the types and devices they had at construction. A parameter that
  // was converted or moved (Module::to) has lost its hook; then it aborts the group and throws
  // std::logic_error naming the parameter. For the start of a forward.
  void check_types();

  // Forgets a backward that ended with an exception. Returns whether there was one.
  bool drop_abandoned_passes();

  // Call it after parameters got another type, which gives them other nodes in the graph.
  void renew_hooks();

  // Set while ranks may run out of input: announces backwards and says by what to divide. Null: no
  // rank runs out. The reducer does not own it.
  void set_join(JoinCalls* join, int model = 0) {
    join_ = join;
    join_model_ = model;
  }
  // Takes part in the other ranks' backward without gradients of its own. Existing gradients stay,
  // except views of buckets, whose content is undefined afterwards.
  void shadow_backward();

  // How many backwards have reduced all gradients.
  std::uint64_t synced_passes() const { return synced_passes_; }

  // Sets defined gradients to zero, keeping them where they are; with set_to_none, makes them
  // undefined.
  void zero_grad(bool set_to_none) { slots().zero_grad(set_to_none); }

  // The parameters given at construction.
  std::size_t num_parameters() const { return parameters_.size(); }
  const NamedTensor& parameter(std::size_t index) const { return slots().parameter(index); }
  // Whether some rank has used it, as the ranks last told each other (find_unused_parameters,
  // static_graph).
  bool is_used(std::size_t index) const { return slots().is_used(index); }
  // Whether a communication hook is given its gradient.
  bool takes_hook(std::size_t index) const {
    return buckets_.kind(parameters_[index].bucket) == GradientBuckets::Kind::kOrdinary;
  }

  const std::vector<buckets::BucketLayout>& buckets() const { return buckets_.layouts(); }
  // For the option of that name in another process.
  BucketNames bucket_layout() const;
  bool has_rebuilt_buckets() const { return has_rebuilt_; }
  const CommHook* comm_hook() const { return buckets_.hook(); }
  PassTimer& timer() { return timer_; }
  const PassTimer& timer() const { return timer_; }
  // Indices of parameters, in the order in which the first backward gave their gradients.
  const std::vector<std::size_t>& ready_order() const { return arrivals_; }
  // Whether every backward so far used the same parameters as the first.
  bool uses_same_parameters() const { return uses_same_; }
  // Names of the parameters that the last backward did not use on this rank.
  std::vector<std::string> unused_parameters() const;

 private:
  // One backward that synchronises. Owned by autograd's record of that backward, which dies when
  // backward() returns or throws: that is how an abandoned one is noticed. (A thread of a device
  // may hold the record a little longer.)
  struct Pass;
  struct LocalPass {
    bool is_finished = false;
  };
  struct EndOfPass;

  struct Parameter {
    at::ScalarType type = at::kFloat;  // At construction, as the device.
    c10::Device device = at::kCPU;
    std::size_t bucket = 0;
    std::size_t piece = 0;
    compat::NodePtr node;  // Tensors hold their AccumulateGrad weakly; without it the hook dies.
    std::uintptr_t hook = 0;
    bool is_deferred = false;  // Its gradient is copied when the piece is launched.
    bool used = false;         // Since the last synchronised backward.
    bool used_in_last = true;  // In the one before.
    std::size_t count = 0;     // Gradients in this backward.
    std::size_t expected = 0;  // With static_graph: in the first backward.
  };

  void adopt(GradientBuckets::Plan plan);
  void follow_pieces();
  void make_memory();
  void add_hook(std::size_t index);
  void remove_hook(Parameter& parameter);

  // One backward, in the order of the calls (reducer_pass.cc).
  void on_outputs();
  void on_gradient(std::size_t index);
  Pass& enter_pass(bool from_outputs);
  bool is_nested_in(const Pass& pass) const;
  bool drop_abandoned_pass();
  void begin_pass(const void* graph, bool from_outputs);
  void enter_local_pass();
  void start(Pass& pass);
  void arrive(std::size_t index);
  void finish_pass(Pass& pass);
  void check_nothing_missing();
  void check_static_graph();

  // What happens to buckets (reducer_buckets.cc).
  void make_ready(std::size_t index);
  void stage_rest();
  void stage_deferred(std::size_t piece);
  void launch_ready_pieces();
  bool may_skip(std::size_t bucket) const;
  bool is_sparse(std::size_t bucket) const;
  void exchange_used(bool shadow);
  void complete(bool shadow);
  void publish_bucket(std::size_t bucket, double scale, bool shadow);
  void end_synced_pass();
  void rebuild();
  void poll_pieces();
  void note_done(std::size_t bucket);
  bool divides_by_live() const;
  ReduceOp reduce_op(std::size_t bucket) const;
  double scale_of(std::size_t bucket) const;
  GradientSlots& slots() { return buckets_.slots(); }
  const GradientSlots& slots() const { return buckets_.slots(); }
  bool joining() const { return join_ != nullptr && !join_->is_over(); }
  const std::string& name_of(std::size_t index) const { return slots().parameter(index).name; }

  // For hooks on outputs, which live as long as what forward gave.
  const std::shared_ptr<Reducer*> self_ = std::make_shared<Reducer*>(this);
  std::shared_ptr<ProcessGroup> group_;
  ReducerOptions options_;
  ReductionPlanner planner_;
  GradientBuckets buckets_;
  ReducedParameters reduced_;
  std::vector<Parameter> parameters_;
  std::vector<std::size_t> arrivals_;  // Of the first backward.
  std::vector<std::string> tags_;      // Of the pieces.

  // Hooks may come from several of autograd's threads, one at a time for each device.
  std::mutex mutex_;
  bool is_all_on_cpu_ = true;
  bool require_sync_ = true;
  std::weak_ptr<Pass> pass_;
  std::weak_ptr<LocalPass> local_pass_;
  bool in_pass_ = false;  // Between the first hook and the end; true with pass_ expired: abandoned.
  bool in_local_pass_ = false;  // The same for local_pass_.
  buckets::BucketProgress progress_;
  PassTimer timer_;
  JoinCalls* join_ = nullptr;
  int join_model_ = 0;
  std::uint64_t synced_passes_ = 0;
  bool has_rebuilt_ = false;
  bool counts_known_ = false;
  bool uses_same_ = true;
};

}  // namespace ddp
