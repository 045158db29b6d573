// Measures how long checkpoints block training; question_checkpoint.py runs it.
//
// bench-checkpoint state STATE FOLDER ROUNDS
//   STATE: resnet50 (with momentum, 205 MB) or NUMBER, so many MiB in tensors of 16 MiB. Prints a
//   JSON line a round: the seconds of a memcpy of the state, of save(), until the checkpoint was
//   durable, and of loading it from the disk and from the page cache.
// bench-checkpoint train FOLDER TURNS STEPS
//   Trains a ResNet50. Prints a JSON line a turn: the seconds of STEPS steps without a save, of as
//   many with one, and of save().
// bench-checkpoint shapes STATE   prints the shapes of the tensors as JSON, for the peer
#include <fcntl.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/sgd.h>

#include "bench/program.h"
#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/tensors/value_of.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/freed_memory.h"
#include "worker/runtime/process_group.h"
#include "worker/train/models/model.h"

namespace ddp::bench {
namespace {

double seconds_of(const std::function<void()>& work) {
  const TimePoint begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Throws the error of the result.
struct Plain : torch::nn::Module {
  explicit Plain(std::int64_t mebibytes) {
    for (std::int64_t i = 0; i * 16 < mebibytes; ++i) {
      register_parameter(fmt::format("tensor{}", i), at::randn({1024, 4096}));
    }
  }
};

// The state that a training saves.
struct State {
  explicit State(const std::string& name) {
    if (name != "resnet50") {
      module = std::make_shared<Plain>(std::stoll(name));
      return;
    }
    const auto model = train::make_model({.name = "resnet50"});
    optimizer = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                    torch::optim::SGDOptions(0.01).momentum(0.9));
    for (const at::Tensor& parameter : model->parameters()) {
      parameter.mutable_grad() = at::full_like(parameter, 1e-6);
    }
    optimizer->step();  // Creates the momenta.
    module = model;
  }
  void register_in(Checkpointer& checkpointer) const {
    checkpointer.add_module("model", *module);
    if (optimizer) checkpointer.add_optimizer("optimizer", *optimizer, *module);
  }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all = module->buffers();
    // Momenta have the parameters' shapes.
    for (int times = optimizer ? 2 : 1; times > 0; --times) {
      for (const at::Tensor& parameter : module->parameters()) all.push_back(parameter);
    }
    return all;
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const at::Tensor& tensor : tensors()) sum += tensor.nbytes();
    return sum;
  }

  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<torch::optim::SGD> optimizer;
};

// Two blocks of touched memory, to time copying one into the other.
class Memcpy {
 public:
  explicit Memcpy(std::size_t bytes) : from_(bytes, 1), to_(bytes, 2) {}
  double seconds() {
    return seconds_of([this] { std::memcpy(to_.data(), from_.data(), to_.size()); });
  }

 private:
  std::vector<char> from_;
  std::vector<char> to_;
};

// Drops the files of a checkpoint from the page cache.
void drop_cached(const std::string& folder) {
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const UniqueFd fd(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd || ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) != 0) {
      throw std::runtime_error("cannot drop " + file.path().string());
    }
  }
}

// Reads them into the page cache, where files are after buffered writing.
void read_through(const std::string& folder) {
  std::vector<char> piece(std::size_t{1} << 20);
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(file.path(), std::ios::binary);
    while (in.read(piece.data(), static_cast<std::streamsize>(piece.size()))) {
    }
  }
}

void measure_state(const std::string& name, const std::string& folder, int rounds) {
  const auto channel = ControlChannel::from_environment({});
  const auto group = ProcessGroup::from_environment();
  const State state(name);
  Memcpy copy(state.bytes());
  Checkpointer checkpointer({.directory = folder, .keep = 1}, group,
                            std::make_shared<CheckpointWriter>(channel.get()));
  state.register_in(checkpointer);
  value_of(checkpointer.prepare());
  std::string last;
  for (int round = -1; round < rounds; ++round) {  // The first one allocates the memory.
    const double copied = copy.seconds();
    const TimePoint begin = Clock::now();
    const SaveReport report = value_of(checkpointer.save(round + 1));
    const double blocked = std::chrono::duration<double>(Clock::now() - begin).count();
    if (report.state != SaveReport::State::kWriting) throw std::runtime_error(report.note);
    const SaveReport done = value_of(checkpointer.wait());
    const double durable = std::chrono::duration<double>(Clock::now() - begin).count();
    read_through(done.path);
    const double loaded = seconds_of([&] { value_of(checkpointer.load_latest()); });
    fmt::print(R"({{"round": {}, "bytes": {}, "memcpy_s": {:.6f}, "blocked_s": {:.6f}, )"
               R"("durable_s": {:.6f}, "load_s": {:.6f}}})"
               "\n",
               round, state.bytes(), copied, blocked, durable, loaded);
    last = done.path;
  }
  // After all others, which would otherwise reuse the memory that this frees.
  for (int round = 0; round < rounds; ++round) {
    drop_cached(last);
    const double loaded = seconds_of([&] { value_of(checkpointer.load_latest()); });
    fmt::print(R"({{"round": {}, "load_cold_s": {:.6f}}})"
               "\n",
               round, loaded);
  }
}

void measure_training(const std::string& folder, int turns, int steps) {
  const auto channel = ControlChannel::from_environment({});
  const auto group = ProcessGroup::from_environment();
  const auto model = train::make_model({.name = "resnet50"});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  DistributedDataParallel<train::Model> ddp(model, group);
  const at::Tensor images = at::randn({8, 3, 64, 64});
  const at::Tensor labels = at::randint(1000, {8}, at::kLong);
  Checkpointer checkpointer({.directory = folder, .keep = 2}, group,
                            std::make_shared<CheckpointWriter>(channel.get()));
  checkpointer.add_module("model", *model);
  checkpointer.add_optimizer("optimizer", optimizer, *model);
  value_of(checkpointer.prepare());
  std::int64_t step = 0;
  double blocked = 0;  // Of the last save.
  const auto turn = [&](bool saves) {
    group->barrier()->wait();
    const double seconds = seconds_of([&] {
      for (int i = 0; i < steps; ++i) {
        ddp.zero_grad();
        model->loss(ddp.forward(images), labels).backward();
        optimizer.step();
        ++step;
        if (saves && i == 0) blocked = seconds_of([&] { value_of(checkpointer.save(step)); });
      }
      group->barrier()->wait();
    });
    // Of the turn that it belongs to: what is not finished by its end disturbs the next turn.
    value_of(checkpointer.wait());
    return seconds;
  };
  for (int round = -1; round < turns; ++round) {
    const bool first = round % 2 == 0;
    const double one = turn(first);
    const double other = turn(!first);
    if (group->rank() != 0 || round < 0) continue;
    fmt::print(R"({{"round": {}, "steps": {}, "with_s": {:.6f}, "without_s": {:.6f}, )"
               R"("blocked_s": {:.6f}}})"
               "\n",
               round, steps, first ? one : other, first ? other : one, blocked);
  }
}

void run(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string what = arguments.empty() ? "" : arguments[0];
  at::set_num_threads(1);
  at::manual_seed(1);
  keep_freed_memory();
  if (what == "state" && arguments.size() == 4) {
    return measure_state(arguments[1], arguments[2], std::stoi(arguments[3]));
  }
  if (what == "train" && arguments.size() == 4) {
    return measure_training(arguments[1], std::stoi(arguments[2]), std::stoi(arguments[3]));
  }
  if (what == "shapes" && arguments.size() == 2) {
    std::vector<std::string> shapes;
    for (const at::Tensor& tensor : State(arguments[1]).tensors()) {
      shapes.push_back(fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")));
    }
    fmt::print("[{}]\n", fmt::join(shapes, ", "));
    return;
  }
  throw std::runtime_error(
      "usage: bench-checkpoint state STATE FOLDER ROUNDS | train FOLDER TURNS STEPS | shapes "
      "STATE");
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-checkpoint", ddp::bench::run, argc, argv);
}
