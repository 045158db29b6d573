#include "worker/ddp/logical/logical_ranks.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include "common/base/check.h"
#include "worker/collectives/kernels.h"
#include "worker/ddp/state/generator_state.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

std::size_t index_of(Rank logical) { return static_cast<std::size_t>(logical); }

constexpr const char* kGenerators = "generators";
constexpr const char* kLosses = "losses";

}  // namespace

LogicalRanks::LogicalRanks(int size, std::uint64_t seed) : losses_(index_of(size)) {
  for (Rank logical = 0; logical < size; ++logical) {
    generators_.push_back(
        at::detail::createCPUGenerator(seed + static_cast<std::uint64_t>(logical)).get_state());
  }
}

void LogicalRanks::enter(Rank logical) const {
  set_generator_state(generators_.at(index_of(logical)));
}

void LogicalRanks::leave(Rank logical) { generators_.at(index_of(logical)) = generator_state(); }

void LogicalRanks::add_loss(Rank logical, double sum, std::int64_t samples) {
  losses_.at(index_of(logical)).sum += sum;
  losses_.at(index_of(logical)).samples += static_cast<double>(samples);
}

double LogicalRanks::mean_loss() const {
  std::vector<RankRange> ranges;
  std::vector<const std::byte*> sources;
  for (const Loss& loss : losses_) {
    const auto rank = static_cast<int>(ranges.size());
    ranges.push_back({rank, rank + 1});
    sources.push_back(reinterpret_cast<const std::byte*>(&loss));
  }
  static_assert(sizeof(Loss) == 2 * sizeof(double));
  Loss total;
  const std::array<std::byte*, 1> target = {reinterpret_cast<std::byte*>(&total)};
  const collectives::FloatEnvironment ieee;
  collectives::reduce({.in = DType::kF64, .out = DType::kF64}, ranges, sources, target, 2);
  return total.sum / total.samples;
}

void LogicalRanks::clear_losses() { losses_.assign(losses_.size(), {}); }

void LogicalRanks::gather(const LogicalWorld& world, ProcessGroup& group) {
  DDP_CHECK(world.size() == size(), "{} logical ranks of {}", size(), world.size());
  if (world.workers() == 1) return;
  const std::size_t state_bytes = generators_.front().nbytes();
  const std::size_t each = state_bytes + sizeof(Loss);
  std::vector<std::size_t> counts;
  for (Rank worker = 0; worker < world.workers(); ++worker) {
    counts.push_back(each * index_of(world.of(worker).size()));
  }
  std::vector<std::byte> own;
  for (Rank logical = world.own().begin; logical < world.own().end; ++logical) {
    const std::size_t at = own.size();
    own.resize(at + each);
    std::memcpy(own.data() + at, generators_[index_of(logical)].data_ptr(), state_bytes);
    std::memcpy(own.data() + at + state_bytes, &losses_[index_of(logical)], sizeof(Loss));
  }
  std::vector<std::byte> all(each * index_of(size()));
  group
      .all_gatherv({own.data(), own.size(), DType::kU8}, {all.data(), all.size(), DType::kU8},
                   counts, {{}, "state of logical ranks"})
      ->wait();
  for (std::size_t logical = 0; logical < generators_.size(); ++logical) {
    // A new tensor each: states that were given away stay what they are.
    at::Tensor state = at::empty_like(generators_[logical]);
    std::memcpy(state.data_ptr(), all.data() + logical * each, state_bytes);
    generators_[logical] = std::move(state);
    std::memcpy(&losses_[logical], all.data() + logical * each + state_bytes, sizeof(Loss));
  }
}

Future LogicalRanks::run(GradBucket& /*bucket*/) {
  throw std::logic_error("the state of logical ranks cannot be run as a communication hook");
}

CommHookState LogicalRanks::state() const {
  at::Tensor losses = at::empty({size(), 2}, at::TensorOptions(at::kDouble));
  std::memcpy(losses.data_ptr(), losses_.data(), losses.nbytes());
  CommHookState state;
  state.replicated = {{kGenerators, at::stack(generators_)}, {kLosses, std::move(losses)}};
  return state;
}

void LogicalRanks::restore(const CommHookState& state) {
  const auto of = [&](const char* name, const at::Tensor& like) {
    const at::Tensor saved = state.replicated.at(name).contiguous();
    if (saved.dim() != 2 || saved.size(0) != size() || saved.size(1) != like.size(1) ||
        saved.scalar_type() != like.scalar_type()) {
      throw std::invalid_argument(
          fmt::format("{} are {}, expected {}: the state of {} logical ranks", name,
                      describe(saved), describe(like), size()));
    }
    return saved;
  };
  const CommHookState own = this->state();
  const at::Tensor generators = of(kGenerators, own.replicated.at(kGenerators));
  const at::Tensor losses = of(kLosses, own.replicated.at(kLosses));
  for (std::size_t logical = 0; logical < generators_.size(); ++logical) {
    generators_[logical] = generators[static_cast<std::int64_t>(logical)].clone();
  }
  std::memcpy(losses_.data(), losses.data_ptr(), losses.nbytes());
}

}  // namespace ddp
