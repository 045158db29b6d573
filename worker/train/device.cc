#include "worker/train/device.h"

#include <chrono>
#include <cstddef>
#include <utility>

#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include "common/base/exit_codes.h"
#include "common/store/tcp_store.h"
#include "worker/nccl/nccl_group.h"
#include "worker/runtime/worker_environment.h"
#include "worker/train/models/names.h"
#include "worker/train/training_failure.h"

namespace ddp::train {
namespace {

[[noreturn]] void refuse_cuda(const std::string& reason) {
  throw TrainingFailure(kExitInvalidValue, "--device cuda: " + reason);
}

std::shared_ptr<Store> connect_store(const WorkerEnvironment& worker,
                                     std::chrono::milliseconds timeout) {
  if (worker.master_addr.empty())
    refuse_cuda("MASTER_ADDR is not set; NCCL's ranks need its store to connect");
  auto store = connect_tcp_store(worker.master_addr, worker.master_port, timeout);
  if (!store) throw CollectiveError(store.error().message, store.error().code, -1);
  return *std::move(store);
}

}  // namespace

std::vector<c10::Device> model_devices(const Options& options) {
  const std::size_t count = is_model_parallel(options.model) ? 2 : 1;
  if (options.device == DeviceKind::kCpu) return {count, c10::Device(c10::kCPU)};
  if (!at::globalContext().hasCUDART()) {
    refuse_cuda("this LibTorch was built without CUDA; use --device cpu");
  }
  const auto first =
      count * static_cast<std::size_t>(read_worker_environment(process_variable).local_rank);
  const std::size_t there = torch::cuda::device_count();
  if (first + count > there) {
    refuse_cuda(
        fmt::format("this worker needs {} from number {} on, but there are {}; start fewer workers",
                    count == 1 ? "a device" : "two devices", first, there));
  }
  std::vector<c10::Device> devices;
  for (std::size_t i = 0; i < count; ++i) {
    devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(first + i));
  }
  return devices;
}

std::vector<DeviceGroup> make_device_groups(const Options& options,
                                            const std::vector<c10::Device>& devices,
                                            const std::shared_ptr<ProcessGroup>& host) {
  if (options.device == DeviceKind::kCpu || host->size() == 1) return {};
  const auto library = NcclLibrary::load();
  if (!library) refuse_cuda(library.error().message);
  const WorkerEnvironment worker = read_worker_environment(process_variable);
  std::vector<DeviceGroup> groups;
  for (const c10::Device& device : devices) {
    NcclGroupOptions nccl;
    nccl.timeout =
        std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_seconds * 1000) + 1);
    nccl.rank = host->rank();
    nccl.size = host->size();
    nccl.round = host->round();
    nccl.device = device.index();
    nccl.name = fmt::format("ddp-train stage {}", groups.size());
    nccl.host_group = host;
    groups.push_back(
        {device, NcclGroup::make(*library, connect_store(worker, nccl.connect_timeout), nccl)});
  }
  return groups;
}

}  // namespace ddp::train
