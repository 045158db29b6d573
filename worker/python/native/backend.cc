#include "worker/python/native/backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "common/base/errc.h"
#include "common/base/parse_number.h"
#include "worker/python/native/failures.h"
#include "worker/python/native/interpreter.h"
#include "worker/python/native/store_adapter.h"
#include "worker/runtime/met_group.h"
#include "worker/runtime/worker_environment.h"
#include "worker/transport/tcp.h"

namespace ddp::python {
namespace {

using c10d::OpType;

// Every backend of this process that may be alive.
class Backends {
 public:
  void add(const c10::intrusive_ptr<DdpBackend>& backend) {
    const std::lock_guard lock(mutex_);
    std::erase_if(backends_, [](const auto& each) { return each.expired(); });
    backends_.emplace_back(backend);
  }
  std::vector<c10::intrusive_ptr<DdpBackend>> alive() {
    const std::lock_guard lock(mutex_);
    std::vector<c10::intrusive_ptr<DdpBackend>> alive;
    for (const auto& each : backends_) {
      if (auto backend = each.lock()) alive.push_back(std::move(backend));
    }
    return alive;
  }

 private:
  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<DdpBackend>> backends_;
};

Backends& backends() {
  // Never destroyed: a thread of a group may outlive static objects.
  static auto* const instance = new Backends;
  return *instance;
}

// Where other machines reach this one: by the way to the store of rank 0, if the environment says
// where that is.
std::vector<std::string> own_addresses() {
  const auto address = process_variable("MASTER_ADDR");
  const auto port =
      parse_whole_number<int>(process_variable("MASTER_PORT").value_or(""), 1, 65'535);
  if (!address || address->empty() || !port) return transport::reachable_addresses("127.0.0.1", 1);
  return transport::reachable_addresses(*address, *port);
}

std::shared_ptr<runtime::Group> meet(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                     int size, const BackendOptions& options) {
  runtime::Meeting meeting;
  meeting.store = std::make_shared<StoreAdapter>(store);
  // The store may have served an earlier group of this name.
  const auto count = meeting.store->add(fmt::format("joined/{}", rank), 1);
  if (!count) throw CollectiveError(count.error().message, count.error().code, rank);
  meeting.prefix = fmt::format("ddp/{}", *count);
  meeting.addresses = own_addresses();
  const auto engine = engine_of(process_variable("DDP_LINK"));
  if (!engine) throw std::invalid_argument(engine.error().message);
  meeting.engine = *engine;
  meeting.group = options.group_name;
  meeting.world_ranks.assign(options.global_ranks.begin(), options.global_ranks.end());
  ProcessGroupOptions group;
  group.timeout = options.timeout;
  group.connect_timeout = options.timeout;
  return runtime::make_met_group(rank, size, std::move(meeting), Clock::now() + options.timeout,
                                 group);
}

// PyTorch 2.6 does not say it for every operation.
template <typename CallOptions>
bool is_async(const CallOptions& options) {
  if constexpr (requires { options.asyncOp; }) {
    return options.asyncOp;
  } else {
    return true;
  }
}

std::vector<std::size_t> counts_of(const Operands& operands, const std::vector<at::Tensor>& list) {
  std::vector<std::size_t> counts;
  for (const at::Tensor& tensor : list) counts.push_back(operands.count_of(tensor));
  return counts;
}

bool are_equal(const std::vector<std::size_t>& counts) {
  return std::all_of(counts.begin(), counts.end(),
                     [&](std::size_t count) { return count == counts.front(); });
}

}  // namespace

c10::intrusive_ptr<DdpBackend> DdpBackend::make(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                int size, BackendOptions options) {
  auto backend = c10::make_intrusive<DdpBackend>(std::move(store), rank, size, std::move(options));
  backends().add(backend);
  return backend;
}

DdpBackend::DdpBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                       BackendOptions options)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      timeout_(options_.timeout) {
  const WithoutGil without_gil;
  const SignalCheck check;
  group_ = with_torch_errors([&] {
    try {
      return meet(store_, rank_, size_, options_);
    } catch (const CollectiveError&) {
      check.rethrow();
      throw;
    }
  });
}

DdpBackend::~DdpBackend() { shutdown(); }

void DdpBackend::shutdown() {
  std::shared_ptr<runtime::Group> group;
  {
    const std::lock_guard lock(mutex_);
    group = std::move(group_);
  }
  if (::getpid() != process_) {
    // A forked child has none of the group's threads, and is no member.
    new std::shared_ptr<runtime::Group>(std::move(group));
    return;
  }
  const WithoutGil without_gil;
  group.reset();
}

void shut_down_all() {
  for (const auto& backend : backends().alive()) backend->shutdown();
}

void DdpBackend::abort() {
  std::shared_ptr<runtime::Group> group;
  {
    const std::lock_guard lock(mutex_);
    group = group_;
  }
  if (group) group->abort("abort() was called");
}

std::shared_ptr<runtime::Group> DdpBackend::live_group() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, group_ != nullptr, "the process group ", options_.group_name,
                   " has been destroyed");
  return group_;
}

DdpBackend::WorkHandle DdpBackend::run(const Call& call, Operands operands,
                                       std::vector<Tensors> value,
                                       const std::vector<Issue>& issues) {
  const std::shared_ptr<runtime::Group> group = live_group();
  auto work = c10::make_intrusive<BackendWork>(rank_, call.type, call.title, sequence_++,
                                               std::move(operands), std::move(value));
  OpOptions options;
  options.timeout = call.timeout.count() > 0 ? call.timeout : timeout_.load();
  const bool is_one = issues.size() == 1;
  options.synchronous = !call.is_async && is_one && !coalescing_;
  if (issues.empty()) {
    work->finish_now();
  } else {
    work->expect(static_cast<int>(issues.size()));
    options.on_done = [work](std::exception_ptr failure) {
      work->operation_done(std::move(failure));
    };
    std::vector<WorkPtr> issued;
    const WithoutGil without_gil;
    const std::optional<SignalCheck> check =
        options.synchronous ? std::make_optional<SignalCheck>() : std::nullopt;
    with_torch_errors([&] {
      try {
        for (const Issue& issue : issues) issued.push_back(issue(*group, options));
      } catch (const CollectiveError&) {
        if (check) check->rethrow();
        throw;
      }
    });
    work->issued(std::move(issued));
  }
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

void DdpBackend::startCoalescing() {
  TORCH_CHECK(!coalescing_, "startCoalescing: the group is coalescing already");
  coalescing_ = true;
}

DdpBackend::WorkHandle DdpBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "endCoalescing: the group is not coalescing");
  coalescing_ = false;
  return c10::make_intrusive<CoalescedWork>(rank_, std::exchange(coalesced_, {}));
}

DdpBackend::WorkHandle DdpBackend::broadcast(Tensors& tensors,
                                             const c10d::BroadcastOptions& options) {
  Operands operands("broadcast");
  operands.require_one(tensors);
  const auto root = static_cast<Rank>(options.rootRank);
  const Buffer buffer = root == rank_ ? operands.input(tensors[0]) : operands.output(tensors[0]);
  return run({OpType::BROADCAST, "ddp:broadcast", options.timeout, is_async(options)},
             std::move(operands), {tensors}, {[=](runtime::Group& group, OpOptions each) {
               return group.broadcast(buffer, root, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::allreduce(Tensors& tensors,
                                             const c10d::AllreduceOptions& options) {
  Operands operands("all_reduce");
  operands.require_one(tensors);
  if (tensors[0].defined() && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  operands.reduces(tensors[0], options.reduceOp);
  const Buffer buffer = operands.in_out(tensors[0]);
  const ReduceOp op = operands.reduction();
  return run({OpType::ALLREDUCE, "ddp:all_reduce", options.timeout, is_async(options)},
             std::move(operands), {tensors}, {[=](runtime::Group& group, OpOptions each) {
               return group.all_reduce(buffer, op, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  Operands operands("all_reduce_coalesced");
  operands.require(!tensors.empty(), "there is no tensor");
  operands.reduces(tensors[0], options.reduceOp);
  std::vector<Buffer> buffers;
  for (const at::Tensor& tensor : tensors) buffers.push_back(operands.in_out(tensor));
  const ReduceOp op = operands.reduction();
  return run({OpType::ALLREDUCE_COALESCED, "ddp:all_reduce", options.timeout, is_async(options)},
             std::move(operands), {tensors}, {[=](runtime::Group& group, OpOptions each) {
               return group.all_reduce_coalesced(buffers, op, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Operands operands("reduce");
  operands.require_one(tensors);
  operands.reduces(tensors[0], options.reduceOp);
  const auto root = static_cast<Rank>(options.rootRank);
  const Buffer buffer = root == rank_ ? operands.in_out(tensors[0]) : operands.input(tensors[0]);
  const ReduceOp op = operands.reduction();
  return run({OpType::REDUCE, "ddp:reduce", options.timeout, is_async(options)},
             std::move(operands), {tensors}, {[=](runtime::Group& group, OpOptions each) {
               return group.reduce(buffer, root, op, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) {
  Operands operands("all_gather");
  operands.require_one(inputs);
  operands.require(outputs.size() == 1, "takes one list of outputs");
  operands.require_length(outputs[0].size(), size_, "the output");
  const Buffer in = operands.input(inputs[0]);
  const Buffer out = operands.outputs(outputs[0]);
  const at::Tensor& own = outputs[0][static_cast<std::size_t>(rank_)];
  operands.require(own.numel() == inputs[0].numel(),
                   fmt::format("the output for rank {}, this one, has {} elements, the input {}",
                               rank_, own.numel(), inputs[0].numel()));
  const std::vector<std::size_t> counts = counts_of(operands, outputs[0]);
  return run({OpType::ALLGATHER, "ddp:all_gather", options.timeout, is_async(options)},
             std::move(operands), outputs, {[=](runtime::Group& group, OpOptions each) {
               return are_equal(counts) ? group.all_gather(in, out, std::move(each))
                                        : group.all_gatherv(in, out, counts, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::AllgatherOptions& options) {
  Operands operands("all_gather_into_tensor");
  const Buffer in = operands.input(input);
  const Buffer out = operands.output(output);
  operands.require(output.numel() == input.numel() * size_,
                   fmt::format("the output has {} elements; {} ranks with {} elements need {}",
                               output.numel(), size_, input.numel(), input.numel() * size_));
  return run({OpType::_ALLGATHER_BASE, "ddp:_all_gather_base", options.timeout, is_async(options)},
             std::move(operands), {{output}}, {[=](runtime::Group& group, OpOptions each) {
               return group.all_gather(in, out, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                       Tensors& inputs,
                                                       const c10d::AllgatherOptions& options) {
  Operands checks("all_gather_coalesced");
  checks.require_length(outputs.size(), size_, "the output");
  std::vector<WorkHandle> works;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors list;
    for (const Tensors& of_rank : outputs) {
      checks.require(of_rank.size() == inputs.size(),
                     "a list of outputs has another length than the inputs");
      list.push_back(of_rank[i]);
    }
    std::vector<Tensors> lists{std::move(list)};
    Tensors input{inputs[i]};
    works.push_back(allgather(lists, input, options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

DdpBackend::WorkHandle DdpBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Operands("all_gather_into_tensor_coalesced")
      .require(outputs.size() == inputs.size(), "there are not as many outputs as inputs");
  std::vector<WorkHandle> works;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_allgather_base(outputs[i], inputs[i], options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

DdpBackend::WorkHandle DdpBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::GatherOptions& options) {
  Operands operands("gather");
  operands.require_one(inputs);
  const auto root = static_cast<Rank>(options.rootRank);
  const Buffer in = operands.input(inputs[0]);
  Buffer out = operands.nothing();
  if (root == rank_) {
    operands.require(outputs.size() == 1, "the root must give one list of outputs");
    operands.require_length(outputs[0].size(), size_, "the output");
    out = operands.outputs(outputs[0]);
  } else {
    operands.require(outputs.empty(), "only the root gives outputs");
  }
  return run({OpType::GATHER, "ddp:gather", options.timeout, is_async(options)},
             std::move(operands), outputs, {[=](runtime::Group& group, OpOptions each) {
               return group.gather(in, out, root, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                      const c10d::GatherOptions& options) {
  Operands operands("gather_into_tensor");
  const auto root = static_cast<Rank>(options.rootRank);
  const Buffer in = operands.input(input);
  const Buffer out = root == rank_ ? operands.output(output) : operands.nothing();
  return run({OpType::GATHER, "ddp:gather", options.timeout, is_async(options)},
             std::move(operands), {{output}}, {[=](runtime::Group& group, OpOptions each) {
               return group.gather(in, out, root, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ScatterOptions& options) {
  Operands operands("scatter");
  operands.require_one(outputs);
  const auto root = static_cast<Rank>(options.rootRank);
  const Buffer out = operands.output(outputs[0]);
  Buffer in = operands.nothing();
  if (root == rank_) {
    operands.require(inputs.size() == 1, "the root must give one list of inputs");
    operands.require_length(inputs[0].size(), size_, "the input");
    in = operands.inputs(inputs[0]);
  } else {
    operands.require(inputs.empty(), "only the root gives inputs");
  }
  return run({OpType::SCATTER, "ddp:scatter", options.timeout, is_async(options)},
             std::move(operands), {outputs}, {[=](runtime::Group& group, OpOptions each) {
               return group.scatter(in, out, root, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ReduceScatterOptions& options) {
  Operands operands("reduce_scatter");
  operands.require_one(outputs);
  operands.require(inputs.size() == 1, "takes one list of inputs");
  operands.require_length(inputs[0].size(), size_, "the input");
  operands.reduces(outputs[0], options.reduceOp);
  const ReduceOp op = operands.reduction();
  const Buffer out = operands.output(outputs[0]);
  const Call call{OpType::REDUCE_SCATTER, "ddp:reduce_scatter", options.timeout, is_async(options)};
  const std::vector<std::size_t> counts = counts_of(operands, inputs[0]);
  operands.require(counts[static_cast<std::size_t>(rank_)] == out.count,
                   "the input for this rank has another number of elements than the output");
  if (are_equal(counts)) {
    const Buffer in = operands.inputs(inputs[0]);
    return run(call, std::move(operands), {outputs}, {[=](runtime::Group& group, OpOptions each) {
                 return group.reduce_scatter(in, out, op, std::move(each));
               }});
  }
  // Each rank's part to its rank. The root reduces in its output.
  std::vector<Issue> issues;
  for (Rank root = 0; root < size_; ++root) {
    const at::Tensor& part = inputs[0][static_cast<std::size_t>(root)];
    Buffer buffer = out;
    if (root == rank_) {
      outputs[0].copy_(part);
    } else {
      buffer = operands.input(part);
    }
    issues.push_back([=](runtime::Group& group, OpOptions each) {
      return group.reduce(buffer, root, op, std::move(each));
    });
  }
  return run(call, std::move(operands), {outputs}, issues);
}

DdpBackend::WorkHandle DdpBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::ReduceScatterOptions& options) {
  Operands operands("reduce_scatter_tensor");
  operands.reduces(output, options.reduceOp);
  const Buffer in = operands.input(input);
  const Buffer out = operands.output(output);
  operands.require(input.numel() == output.numel() * size_,
                   fmt::format("the input has {} elements; {} ranks with {} elements need {}",
                               input.numel(), size_, output.numel(), output.numel() * size_));
  const ReduceOp op = operands.reduction();
  return run({OpType::_REDUCE_SCATTER_BASE, "ddp:_reduce_scatter_base", options.timeout,
              is_async(options)},
             std::move(operands), {{output}}, {[=](runtime::Group& group, OpOptions each) {
               return group.reduce_scatter(in, out, op, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  Operands("reduce_scatter_tensor_coalesced")
      .require(outputs.size() == inputs.size(), "there are not as many outputs as inputs");
  std::vector<WorkHandle> works;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

// Buffer elements of each rank's rows. Without sizes, equal ones.
std::vector<std::size_t> DdpBackend::split_counts(const Operands& operands,
                                                  const at::Tensor& tensor,
                                                  const std::vector<std::int64_t>& sizes,
                                                  const char* what) const {
  operands.require(tensor.dim() > 0, fmt::format("the {} has no dimension to split", what));
  const std::int64_t rows = tensor.size(0);
  std::vector<std::int64_t> split = sizes;
  if (split.empty()) {
    operands.require(rows % size_ == 0,
                     fmt::format("the {} rows of the {} cannot be divided equally among {} ranks; "
                                 "give split sizes",
                                 rows, what, size_));
    split.assign(static_cast<std::size_t>(size_), rows / size_);
  }
  operands.require(split.size() == static_cast<std::size_t>(size_),
                   fmt::format("{} split sizes of the {} for {} ranks", split.size(), what, size_));
  std::int64_t total = 0;
  std::vector<std::size_t> counts;
  for (const std::int64_t size : split) {
    operands.require(size >= 0, fmt::format("a split size of the {} is {}", what, size));
    total += size;
    const std::int64_t elements = rows == 0 ? 0 : size * (tensor.numel() / rows);
    counts.push_back(static_cast<std::size_t>(elements) * operands.scale());
  }
  operands.require(total == rows, fmt::format("the split sizes of the {} add up to {}, not to its "
                                              "{} rows",
                                              what, total, rows));
  return counts;
}

DdpBackend::WorkHandle DdpBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<std::int64_t>& output_split_sizes,
                                                 std::vector<std::int64_t>& input_split_sizes,
                                                 const c10d::AllToAllOptions& options) {
  Operands operands("all_to_all_single");
  const Buffer in = operands.input(input);
  const Buffer out = operands.output(output);
  const auto in_counts = split_counts(operands, input, input_split_sizes, "input");
  const auto out_counts = split_counts(operands, output, output_split_sizes, "output");
  const bool is_even = output_split_sizes.empty() && input_split_sizes.empty();
  return run({OpType::ALLTOALL_BASE, "ddp:all_to_all", options.timeout, is_async(options)},
             std::move(operands), {{output}}, {[=](runtime::Group& group, OpOptions each) {
               return is_even ? group.all_to_all(in, out, std::move(each))
                              : group.all_to_allv(in, in_counts, out, out_counts, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                            const c10d::AllToAllOptions& options) {
  Operands operands("all_to_all");
  operands.require_length(outputs.size(), size_, "the output");
  operands.require_length(inputs.size(), size_, "the input");
  const Buffer in = operands.inputs(inputs);
  const Buffer out = operands.outputs(outputs);
  const auto in_counts = counts_of(operands, inputs);
  const auto out_counts = counts_of(operands, outputs);
  // Whether all blocks of all ranks are equal cannot be told from those of one rank.
  return run({OpType::ALLTOALL, "ddp:all_to_all", options.timeout, is_async(options)},
             std::move(operands), {outputs}, {[=](runtime::Group& group, OpOptions each) {
               return group.all_to_allv(in, in_counts, out, out_counts, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::barrier(const c10d::BarrierOptions& options) {
  return run(
      {OpType::BARRIER, "ddp:barrier", options.timeout, is_async(options)}, Operands("barrier"), {},
      {[](runtime::Group& group, OpOptions each) { return group.barrier(std::move(each)); }});
}

void DdpBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const auto group = live_group();
  const auto timeout = options.timeout.count() > 0 ? options.timeout : timeout_.load();
  const WithoutGil without_gil;
  with_torch_errors([&] { group->monitored_barrier(timeout, wait_all_ranks); });
}

DdpBackend::WorkHandle DdpBackend::send(Tensors& tensors, int destination, int tag) {
  Operands operands("send");
  operands.require_one(tensors);
  operands.require(tag >= 0, fmt::format("the tag is {}, but must not be negative", tag));
  const Buffer buffer = operands.input(tensors[0]);
  return run({OpType::SEND, "ddp:send"}, std::move(operands), {tensors},
             {[=](runtime::Group& group, OpOptions each) {
               return group.send(buffer, destination, static_cast<std::uint32_t>(tag),
                                 std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::recv(Tensors& tensors, int source, int tag) {
  Operands operands("recv");
  operands.require_one(tensors);
  operands.require(tag >= 0, fmt::format("the tag is {}, but must not be negative", tag));
  const Buffer buffer = operands.output(tensors[0]);
  return run({OpType::RECV, "ddp:recv"}, std::move(operands), {tensors},
             {[=](runtime::Group& group, OpOptions each) {
               return group.recv(buffer, source, static_cast<std::uint32_t>(tag), std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::recvAnysource(Tensors& tensors, int tag) {
  Operands operands("recv");
  operands.require_one(tensors);
  operands.require(tag >= 0, fmt::format("the tag is {}, but must not be negative", tag));
  const Buffer buffer = operands.output(tensors[0]);
  const auto message = std::make_shared<std::shared_ptr<runtime::MessageWork>>();
  auto work = run({OpType::RECVANYSOURCE, "ddp:recv"}, std::move(operands), {tensors},
                  {[=](runtime::Group& group, OpOptions each) {
                    *message =
                        group.recv_any(buffer, static_cast<std::uint32_t>(tag), std::move(each));
                    return *message;
                  }});
  static_cast<BackendWork&>(*work).issued_from_any(*message);
  return work;
}

}  // namespace ddp::python
