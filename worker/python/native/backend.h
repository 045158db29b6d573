#pragma once

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "common/base/random_hex.h"
#include "worker/python/native/backend_work.h"
#include "worker/python/native/device_groups.h"
#include "worker/runtime/group.h"

namespace ddp::python {

// What torch.distributed gives to a backend when it makes a group.
struct BackendOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};
  std::string group_name = "default";  // For messages.
  std::vector<int> global_ranks;       // By rank of the group; empty: it is the world.
  bool waits_for_reconfigure = false;  // Has no members until reconfigure().
};

// PyTorch's backend "ddp" under the interface of torch.distributed, with the meanings that
// PyTorch's documentation gives to the operations: a runtime::Group for tensors on the CPU, and
// NCCL, from their first use on, for tensors on CUDA devices. What a rank's own death or failure
// ends, it ends for both.
//
// Any thread may call, with or without the GIL; it is not held while the backend waits.
class DdpBackend final : public c10d::Backend {
 public:
  using WorkHandle = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  // Collective over the ranks that meet at the store. Throws DistBackendError.
  static c10::intrusive_ptr<DdpBackend> make(c10::intrusive_ptr<c10d::Store> store, int rank,
                                             int size, BackendOptions options);
  // Over a group that there is already. The store: for what the ranks make later.
  static c10::intrusive_ptr<DdpBackend> make_over(c10::intrusive_ptr<c10d::Store> store,
                                                  std::shared_ptr<runtime::Group> group,
                                                  BackendOptions options);
  // The same ranks for tensors on the CPU and on devices.
  struct Members {
    std::shared_ptr<runtime::Group> host;
    std::shared_ptr<DeviceGroups> devices;
  };
  // For make() and make_over().
  DdpBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, BackendOptions options,
             Members members);
  ~DdpBackend() override;

  const std::string getBackendName() const override { return "ddp"; }

  WorkHandle broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkHandle allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkHandle allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkHandle allreduce_coalesced(Tensors& tensors,
                                 const c10d::AllreduceCoalescedOptions& options) override;
  WorkHandle reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkHandle allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                       const c10d::AllgatherOptions& options) override;
  WorkHandle _allgather_base(at::Tensor& output, at::Tensor& input,
                             const c10d::AllgatherOptions& options) override;
  WorkHandle allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& options) override;
  WorkHandle allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) override;
  WorkHandle gather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::GatherOptions& options) override;
  WorkHandle scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                     const c10d::ScatterOptions& options) override;
  WorkHandle reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ReduceScatterOptions& options) override;
  WorkHandle _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::ReduceScatterOptions& options) override;
  WorkHandle reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                             const c10d::ReduceScatterOptions& options) override;
  WorkHandle alltoall_base(at::Tensor& output, at::Tensor& input,
                           std::vector<std::int64_t>& output_split_sizes,
                           std::vector<std::int64_t>& input_split_sizes,
                           const c10d::AllToAllOptions& options) override;
  WorkHandle alltoall(Tensors& outputs, Tensors& inputs,
                      const c10d::AllToAllOptions& options) override;
  WorkHandle barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  WorkHandle send(Tensors& tensors, int destination, int tag) override;
  WorkHandle recv(Tensors& tensors, int source, int tag) override;
  WorkHandle recvAnysource(Tensors& tensors, int tag) override;

  void startCoalescing() override;
  WorkHandle endCoalescing() override;

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }

  // These override functions that PyTorch 2.6 does not have yet, hence without the keyword.
  virtual void setTimeout(std::chrono::milliseconds timeout) { timeout_.store(timeout); }
  virtual bool supportsCoalescing() const { return true; }
  virtual WorkHandle gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                        const c10d::GatherOptions& options);
  bool supportsSplitting() const override { return true; }
  virtual bool supportsShrinking() const { return true; }
  virtual c10::intrusive_ptr<Options> getBackendOptions();
  // A group of some ranks, numbered in this order. All of them call it. store: for them alone. Null
  // for a rank that is not among them.
  virtual c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                            const std::vector<int>& ranks,
                                            const c10::intrusive_ptr<Options>& options);
  // A group without some ranks, which may be dead. All others call it.
  virtual c10::intrusive_ptr<Backend> shrink(const std::vector<std::int64_t>& excluded, int flags,
                                             const c10::intrusive_ptr<Options>& options);
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  // Gives the group other members, each of which calls it: those that are left after a failure, and
  // new ones whose store is the same. Blocks until all are there. If it fails, the group has no
  // members and may be reconfigured again.
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle_; }
  WorkHandle reconfigure(const c10d::ReconfigureOptions& options) override;
#endif

  // In memory that the node's ranks share, if there is room. For the CPU, which has no index.
  virtual at::Tensor allocateTensor(long size, at::TensorOptions options);
  virtual bool supportsTensorAlloc(c10::DeviceIndex device) { return device < 0; }
  // Ends every operation of the group and of those that share its memory, here and on the other
  // ranks: they raise DistBackendError.
  virtual void abort();
  // Leaves the group in order. Nothing may be outstanding on the CPU; waits for what devices do.
  virtual void shutdown();

  // For the last reference. The destructor only follows when nobody has a weak one.
  void release_resources() override { shutdown(); }

  // Ranks of one node share memory.
  int nodes() const { return live().host->nodes(); }
  // What carries the tensors on the CPU.
  std::shared_ptr<runtime::Group> host_group() const { return live().host; }

 private:
  using Issue = std::function<WorkPtr(ProcessGroup&, OpOptions)>;
  struct Call {
    c10d::OpType type;
    const char* title;  // For the profiler.
    std::chrono::milliseconds timeout{0};
    bool is_async = true;
  };

  static Members meet_members(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                              const BackendOptions& options);
  BackendOptions of_ranks(const std::vector<int>& ranks,
                          const c10::intrusive_ptr<Options>& options) const;
  WorkHandle run(const Call& call, Operands operands, std::vector<Tensors> value,
                 const std::vector<Issue>& issues);
  WorkHandle run_on_device(const Call& call, std::vector<Operands> operands,
                           std::vector<Tensors> value, const std::vector<Issue>& issues);
  WorkHandle transfer(const Call& call, Operands operands, Transfer transfer, Tensors& tensors,
                      const Issue& issue);
  std::chrono::milliseconds timeout_of(const Call& call) const {
    return call.timeout.count() > 0 ? call.timeout : timeout_.load();
  }
  Members live() const;
  std::vector<std::size_t> split_counts(const Operands& operands, const at::Tensor& tensor,
                                        const std::vector<std::int64_t>& sizes,
                                        const char* what) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const BackendOptions options_;
  const std::string handle_ = "ddp-" + random_hex(8);
  const pid_t process_ = ::getpid();  // That made it.
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<std::uint64_t> sequence_{0};
  mutable std::mutex mutex_;
  Members members_;  // Null after shutdown().
  bool is_being_reconfigured_ =
      options_.waits_for_reconfigure;  // It has no members yet, or failed.
  bool coalescing_ = false;
  std::vector<WorkHandle> coalesced_;
  // Messages between devices must be given to NCCL at once, or two ranks would wait for each other.
  std::vector<Operands> coalesced_operands_;
  std::vector<Transfer> coalesced_transfers_;
};

// Lets every backend of this process leave in order. For the end of the interpreter.
void shut_down_all();

}  // namespace ddp::python
