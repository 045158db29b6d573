// bench-diloco: trains ddp-train's gpt on generated text. It averages gradients in every step (DDP)
// or replicas from time to time (DiLoCo); question_diloco.py runs it.
//
// usage: ddp-run ... bench-diloco WAY STEPS EVERY
// WAY: ddp, or diloco:H:FRAGMENTS:DELAY:ALPHA:TYPE, TYPE f32 or bf16. Prints a JSON line every
// EVERY steps: the bytes that each rank has given to averages until then, and the mean loss of the
// common model on held-out text, in nats per byte.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include "bench/program.h"
#include "worker/data/sampler.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/diloco/diloco.h"
#include "worker/runtime/freed_memory.h"
#include "worker/runtime/process_group.h"
#include "worker/train/dataset.h"
#include "worker/train/models/model.h"

namespace ddp::bench {
namespace {

constexpr std::int64_t kBatch = 8;
constexpr std::int64_t kTestPieces = 128;
constexpr double kRate = 1e-3;
const train::GptShape kShape = {.layers = 2, .heads = 4, .width = 64, .context = 64};

std::shared_ptr<train::Model> make_gpt() {
  at::manual_seed(1);
  return train::make_model({.name = "gpt", .gpt = kShape});
}

train::Datasets make_data(std::int64_t pieces) {
  train::Options options;
  options.model = "gpt";
  options.data = "synthetic";
  options.gpt = kShape;
  options.train_samples = pieces;
  options.test_samples = kTestPieces;
  auto sets = train::make_datasets(options);
  if (!sets) throw std::runtime_error(sets.error().message);
  return *std::move(sets);
}

double test_loss(train::Model& model, const train::Dataset& data) {
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> all(static_cast<std::size_t>(data.size()));
  std::iota(all.begin(), all.end(), 0);
  train::Batch batch;
  data.fill(all, batch);
  return model.loss(model.forward(batch.input), batch.target).item<double>();
}

// One way to train.
class Way {
 public:
  virtual ~Way() = default;
  virtual void step(const train::Batch& batch) = 0;
  virtual std::uint64_t bytes() const = 0;
  // The model that the ranks have in common; only rank 0 needs it.
  virtual train::Model& common() = 0;
};

class InEveryStep final : public Way {
 public:
  explicit InEveryStep(const std::shared_ptr<ProcessGroup>& group)
      : ddp_(make_gpt(), group), optimizer_(ddp_.module().parameters(), kRate) {
    for (const at::Tensor& parameter : ddp_.module().parameters()) each_ += parameter.nbytes();
  }
  void step(const train::Batch& batch) override {
    ddp_.zero_grad();
    ddp_.module().loss(ddp_(batch.input), batch.target).backward();
    optimizer_.step();
    bytes_ += each_;
  }
  std::uint64_t bytes() const override { return bytes_; }
  train::Model& common() override { return ddp_.module(); }

 private:
  DistributedDataParallel<train::Model> ddp_;
  torch::optim::AdamW optimizer_;
  std::uint64_t each_ = 0;
  std::uint64_t bytes_ = 0;
};

class NowAndThen final : public Way {
 public:
  NowAndThen(const std::shared_ptr<ProcessGroup>& group, const DiLoCoOptions& options)
      : model_(make_gpt()),
        common_(make_gpt()),
        optimizer_(model_->parameters(), kRate),
        diloco_(*model_, optimizer_, options) {
    diloco_.enter(group);
  }
  void step(const train::Batch& batch) override {
    diloco_.zero_grad();
    model_->loss(model_->forward(batch.input), batch.target).backward();
    diloco_.step();
  }
  std::uint64_t bytes() const override { return diloco_.communicated_bytes(); }
  train::Model& common() override {
    const at::NoGradGuard no_grad;
    const auto values = diloco_.common().parameters();
    const auto parameters = common_->parameters();
    for (std::size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
    return *common_;
  }

 private:
  std::shared_ptr<train::Model> model_;
  std::shared_ptr<train::Model> common_;
  torch::optim::AdamW optimizer_;
  DiLoCo diloco_;
};

std::unique_ptr<Way> make_way(const std::string& text, const std::shared_ptr<ProcessGroup>& group) {
  if (text == "ddp") return std::make_unique<InEveryStep>(group);
  std::istringstream in(text);
  std::vector<std::string> parts;
  for (std::string part; std::getline(in, part, ':');) parts.push_back(part);
  if (parts.size() != 6 || parts[0] != "diloco")
    throw std::invalid_argument("unknown way: " + text);
  DiLoCoOptions options{.sync_every = std::stoll(parts[1]),
                        .fragments = std::stoi(parts[2]),
                        .fragment_sync_delay = std::stoll(parts[3]),
                        .fragment_update_alpha = std::stod(parts[4])};
  if (parts[5] == "bf16") options.transfer_dtype = at::kBFloat16;
  return std::make_unique<NowAndThen>(group, options);
}

void run(int argc, char** argv) {
  if (argc != 4) throw std::invalid_argument("usage: bench-diloco WAY STEPS EVERY");
  keep_freed_memory();
  at::set_num_threads(1);
  const std::shared_ptr<ProcessGroup> group = ProcessGroup::from_environment();
  const std::int64_t steps = std::stoll(argv[2]);
  const std::int64_t every = std::stoll(argv[3]);
  const train::Datasets data = make_data(steps * kBatch * group->size());
  DistributedSampler sampler({.dataset_size = data.train->size(),
                              .batch_size = kBatch,
                              .rank = group->rank(),
                              .world_size = group->size(),
                              .seed = 1});
  sampler.set_epoch(0);
  const std::unique_ptr<Way> way = make_way(argv[1], group);
  train::Batch batch;
  for (std::int64_t step = 1; step <= steps; ++step) {
    data.train->fill(sampler.next_batch(), batch);
    way->step(batch);
    if (step % every != 0 || group->rank() != 0) continue;
    fmt::print("{{\"step\": {}, \"bytes\": {}, \"loss\": {:.5f}}}\n", step, way->bytes(),
               test_loss(way->common(), *data.test));
    std::fflush(stdout);
  }
  group->barrier()->wait();
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-diloco", ddp::bench::run, argc, argv);
}
