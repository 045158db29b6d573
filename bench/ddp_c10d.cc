// bench-c10d: what bench-ddp does, with LibTorch's own C++ Reducer over ProcessGroupGloo, so that
// no interpreter is in the peer's figures.
//
// usage: RANK=r WORLD_SIZE=p bench-c10d STORE MODEL STEPS ROUNDS
// STORE is the file of the FileStore through which the ranks connect; it must not exist yet.
// Traffic is over the loopback interface, as always with gloo. The calls are those of Python's
// DistributedDataParallel with gradient_as_bucket_view.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include "bench/ddp_task.h"
#include "bench/program.h"

namespace ddp::bench {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr std::int64_t kBucketBytes = std::int64_t{25} << 20;

int number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) throw std::invalid_argument(std::string(name) + " is not set");
  return std::stoi(text);
}

Group make_group(const std::string& store_file, int rank, int size) {
  const auto store = c10::make_intrusive<c10d::FileStore>(store_file, size);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface("lo"));
  const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
#if TORCH_VERSION_MAJOR < 2
  return gloo;
#else
  using Backend = c10d::ProcessGroup::BackendType;
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(at::kCPU, Backend::GLOO, gloo);
  group->setDefaultBackend(Backend::GLOO);
  return group;
#endif
}

// Broadcasts rank 0's parameters and buffers.
void broadcast_model(const Group& group, const train::Model& model) {
  const at::NoGradGuard no_grad;
  for (const auto& list : {model.parameters(), model.buffers()}) {
    for (const at::Tensor& tensor : list) {
      std::vector<at::Tensor> tensors{tensor.detach()};
      group->broadcast(tensors)->wait();
    }
  }
}

// As in DistributedDataParallel: one bucket for the first step, rebuilt after it.
c10d::Reducer make_reducer(const Group& group, const train::Model& model) {
  const std::vector<at::Tensor> parameters = model.parameters();
  const std::vector<bool> sparse(parameters.size(), false);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      parameters, {static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())}, sparse);
#if TORCH_VERSION_MAJOR == 1 || TORCH_VERSION_MINOR < 14
  return c10d::Reducer(parameters, std::move(buckets), std::move(limits), group, sparse,
                       kBucketBytes, /*find_unused_parameters=*/false,
                       /*gradient_as_bucket_view=*/true, {}, c10d::kDefaultFirstBucketBytes);
#else
  return c10d::Reducer(parameters, std::move(buckets), group, sparse, kBucketBytes,
                       /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true, {},
                       c10d::kDefaultFirstBucketBytes, /*skip_all_reduce_unused_params=*/false,
                       /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/{});
#endif
}

void run(int argc, char** argv) {
  if (argc != 5) throw std::invalid_argument("usage: bench-c10d STORE MODEL STEPS ROUNDS");
  at::set_num_threads(1);
  const int rank = number_from_environment("RANK");
  const int size = number_from_environment("WORLD_SIZE");
  const Group group = make_group(argv[1], rank, size);

  const Task task = make_task(argv[2], rank);
  broadcast_model(group, *task.model);
  c10d::Reducer reducer = make_reducer(group, *task.model);
  torch::optim::SGD optimizer(task.model->parameters(),
                              torch::optim::SGDOptions(0.01).momentum(0.5));
  // Rank 0's buffers replace the others' before every forward but the first, coalesced.
  const std::vector<at::Tensor> buffers = task.model->buffers();
  const bool set_to_none = is_asked_for(kSetToNone);
  at::Tensor loss;
  const auto forward = [&] {
    task.model->zero_grad(set_to_none);  // The optimizer's refuses bucket views.
    reducer.prepare_for_forward();
    reducer.rebuild_buckets();
    if (loss.defined() && !buffers.empty()) {
      c10d::broadcast_coalesced(group, buffers, std::size_t{250} << 20, 0);
    }
    const at::Tensor output = task.model->forward(task.input);
    reducer.prepare_for_backward({output});
    loss = task.model->loss(output, task.target);
    return loss;
  };
  const std::vector<Measurement> measurements =
      measure_steps(std::stoi(argv[4]), std::stoi(argv[3]), [&] { group->barrier()->wait(); },
                    {{forward, [&] { optimizer.step(); }}});
  if (rank == 0) print_measurement("c10d", argv[2], measurements.front());
  group->barrier()->wait();
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-c10d", ddp::bench::run, argc, argv);
}
