// DiLoCo against a simulation of its formulas in one process, and what it promises about resuming,
// errors and bytes.
#include "worker/ddp/diloco/diloco.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/state/checkpointer.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// Three layers of equal size, so that three fragments are a layer each.
const std::vector<std::int64_t> kWidths = {8, 8, 8, 8};
constexpr std::size_t kLayers = 3;
constexpr std::uint64_t kParameters = 3 * (8 * 8 + 8);

struct Inner {
  const char* name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> make;
};

std::vector<Inner> inner_optimizers() {
  using namespace torch::optim;
  return {{"SGD with momentum",
           [](auto parameters) {
             return std::make_unique<SGD>(parameters, SGDOptions(0.05).momentum(0.9));
           }},
          {"AdamW", [](auto parameters) {
             return std::make_unique<AdamW>(parameters, AdamWOptions(0.01));
           }}};
}

// One rank's gradients of one step.
void backward(Mlp& model, int rank, std::int64_t step) {
  const auto seed = static_cast<std::uint64_t>(1000 * (rank + 1) + step);
  const at::Tensor input = random_tensor({4, 8}, seed);
  torch::mse_loss(model.forward(input), input.sin()).backward();
}

// The paper's outer optimizer, written out.
struct Common {
  at::Tensor value;
  at::Tensor momentum;

  void step(const at::Tensor& gradient) {
    momentum = momentum.defined() ? 0.9 * momentum + gradient : gradient.clone();
    value = value - 0.7 * (gradient + 0.9 * momentum);
  }
};

// What each rank's parameters are after so many steps.
std::vector<std::vector<at::Tensor>> simulate(int world, const Inner& inner,
                                              const DiLoCoOptions& options, std::int64_t steps) {
  struct Replica {
    Mlp model{kWidths};
    std::unique_ptr<torch::optim::Optimizer> optimizer;
  };
  std::vector<Replica> replicas(static_cast<std::size_t>(world));
  for (Replica& replica : replicas) {
    fill(replica.model, 5);
    replica.optimizer = inner.make(replica.model.parameters());
  }
  const torch::NoGradGuard outside;
  std::vector<Common> common;
  for (const at::Tensor& parameter : replicas[0].model.parameters())
    common.push_back({parameter.clone(), {}});
  const std::int64_t turn = options.sync_every / options.fragments;
  std::vector<at::Tensor> averages(common.size());
  for (std::int64_t step = 1; step <= steps; ++step) {
    for (int rank = 0; rank < world; ++rank) {
      Replica& replica = replicas[static_cast<std::size_t>(rank)];
      replica.optimizer->zero_grad();
      {
        const torch::AutoGradMode with_grad(true);
        backward(replica.model, rank, step);
      }
      replica.optimizer->step();
    }
    for (std::size_t i = 0; i < common.size(); ++i) {
      const std::size_t layers_a_fragment = kLayers / static_cast<std::size_t>(options.fragments);
      const auto fragment = static_cast<std::int64_t>(i / 2 / layers_a_fragment);
      // In its cycle each fragment has its turn.
      const auto is_turn = [&](std::int64_t at) {
        return at > 0 && (at - (fragment + 1) * turn) % options.sync_every == 0;
      };
      if (is_turn(step)) {
        averages[i] = torch::zeros_like(common[i].value);
        for (Replica& replica : replicas)
          averages[i] += (common[i].value - replica.model.parameters()[i]) / world;
      }
      if (!is_turn(step - options.fragment_sync_delay)) continue;
      common[i].step(averages[i]);
      for (Replica& replica : replicas) {
        at::Tensor own = replica.model.parameters()[i];
        const double alpha = options.fragment_update_alpha;
        own.copy_(alpha * own + (1 - alpha) * common[i].value);
      }
    }
  }
  std::vector<std::vector<at::Tensor>> result;
  for (const Replica& replica : replicas) result.push_back(replica.model.parameters());
  return result;
}

void expect_close(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-5, 2e-6))
        << i << ": " << (actual[i] - expected[i]).abs().max().item<float>();
  }
}

// A rank's.
struct Training {
  Training(const Inner& inner, const DiLoCoOptions& options)
      : model(std::make_shared<Mlp>(kWidths)) {
    fill(*model, 5);
    optimizer = inner.make(model->parameters());
    diloco = std::make_unique<DiLoCo>(*model, *optimizer, options);
  }
  void train(int rank, std::int64_t until) {
    while (diloco->steps() < until) {
      diloco->zero_grad();
      backward(*model, rank, diloco->steps() + 1);
      diloco->step();
    }
  }
  std::shared_ptr<Mlp> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<DiLoCo> diloco;
};

std::vector<DiLoCoOptions> ways() {
  return {
      {.sync_every = 1},
      {.sync_every = 5},
      {.sync_every = 6, .fragments = 3},
      {.sync_every = 5, .fragment_sync_delay = 2},
      {.sync_every = 9, .fragments = 3, .fragment_sync_delay = 2, .fragment_update_alpha = 0.5}};
}

std::string describe(const DiLoCoOptions& options) {
  return "every " + std::to_string(options.sync_every) + " fragments " +
         std::to_string(options.fragments) + " delay " +
         std::to_string(options.fragment_sync_delay) + " alpha " +
         std::to_string(options.fragment_update_alpha);
}

TEST(DiLoCo, IsItsFormulas) {
  constexpr std::int64_t kSteps = 23;
  for (const Inner& inner : inner_optimizers()) {
    for (const DiLoCoOptions& options : ways()) {
      for (const std::vector<int>& nodes : {std::vector{1}, {2}, {2, 1, 1}}) {
        SCOPED_TRACE(std::string(inner.name) + " " + describe(options));
        int world = 0;
        for (const int size : nodes) world += size;
        const auto expected = simulate(world, inner, options, kSteps);
        run_ranks(nodes, [&](const GroupPtr& group) {
          Training own(inner, options);
          own.diloco->enter(group);
          own.train(group->rank(), kSteps);
          expect_close(own.model->parameters(), expected[static_cast<std::size_t>(group->rank())]);
        });
      }
    }
  }
}

TEST(DiLoCo, BeginsWithRankZerosParametersAndEndsWithCommonOnes) {
  run_ranks({3}, [&](const GroupPtr& group) {
    Training own(inner_optimizers()[0],
                 {.sync_every = 6, .fragments = 3, .fragment_sync_delay = 1});
    if (group->rank() != 0) fill(*own.model, 77);
    own.diloco->enter(group);
    Mlp first(kWidths);
    fill(first, 5);
    EXPECT_EQ(bytes_of(*own.model), bytes_of(first));
    own.train(group->rank(), 9);
    own.diloco->synchronize();
    const std::string bytes = bytes_of(*own.model);
    std::vector<std::uint8_t> all(bytes.size() * 3);
    group
        ->all_gather({const_cast<char*>(bytes.data()), bytes.size(), DType::kU8},
                     {all.data(), all.size(), DType::kU8})
        ->wait();
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(static_cast<char>(all[i]), bytes[i % bytes.size()]) << i;
    }
    // There is nothing new to tell.
    own.diloco->synchronize();
    EXPECT_EQ(bytes_of(*own.model), bytes);
  });
}

// With an outer SGD of learning rate 1, parameters are averaged.
TEST(DiLoCo, WithAPlainOuterStepIsLocalSgd) {
  const auto average = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(1));
  };
  std::vector<std::vector<at::Tensor>> apart(2);
  run_ranks({2}, [&](const GroupPtr& group) {
    const auto rank = static_cast<std::size_t>(group->rank());
    const auto model = std::make_shared<Mlp>(kWidths);
    fill(*model, 5);
    torch::optim::SGD inner(model->parameters(), torch::optim::SGDOptions(0.05));
    DiLoCo diloco(*model, inner, {.sync_every = 4}, average);
    diloco.enter(group);
    for (std::int64_t step = 1; step <= 4; ++step) {
      diloco.zero_grad();
      backward(*model, group->rank(), step);
      if (step == 4) {
        // What the step would leave without the others.
        for (const at::Tensor& parameter : model->parameters()) {
          apart[rank].push_back((parameter - 0.05 * parameter.grad()).detach());
        }
        group->barrier()->wait();
      }
      diloco.step();
    }
    std::vector<at::Tensor> means;
    for (std::size_t i = 0; i < apart[0].size(); ++i)
      means.push_back((apart[0][i] + apart[1][i]) / 2);
    expect_close(model->parameters(), means);
  });
}

TEST(DiLoCo, CountsWhatItGivesAway) {
  run_ranks({2}, [&](const GroupPtr& group) {
    const auto bytes_of_run = [&](const DiLoCoOptions& options) {
      Training own(inner_optimizers()[0], options);
      own.diloco->enter(group);
      own.train(group->rank(), 12);
      return own.diloco->communicated_bytes();
    };
    EXPECT_EQ(bytes_of_run({.sync_every = 4}), 3 * 4 * kParameters);
    EXPECT_EQ(bytes_of_run({.sync_every = 12, .fragments = 3}), 4 * kParameters);
    EXPECT_EQ(bytes_of_run({.sync_every = 4, .transfer_dtype = at::kBFloat16}),
              3 * 2 * kParameters);
  });
}

TEST(DiLoCo, TravelsInSixteenBitsWithLittleLoss) {
  const Inner inner = inner_optimizers()[0];
  const auto expected = simulate(2, inner, {.sync_every = 4}, 12);
  run_ranks({2}, [&](const GroupPtr& group) {
    Training own(inner, {.sync_every = 4, .transfer_dtype = at::kBFloat16});
    own.diloco->enter(group);
    own.train(group->rank(), 12);
    const auto parameters = own.model->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i], expected[0][i], 1e-2, 5e-3)) << i;
      EXPECT_FALSE(torch::equal(parameters[i], expected[0][i])) << i;
    }
  });
}

void save(Training& training, const GroupPtr& group, const std::string& path) {
  const auto state = training.diloco->own_state();
  Checkpointer checkpointer({.directory = path}, group);
  training.diloco->add_to(checkpointer);
  checkpointer.add_comm_hook("diloco", *state);
  ASSERT_TRUE(checkpointer.prepare());
  ASSERT_TRUE(checkpointer.save(training.diloco->steps()));
  ASSERT_TRUE(checkpointer.wait());
}

void load(Training& training, const GroupPtr& group, const std::string& path) {
  const auto state = training.diloco->own_state();
  Checkpointer checkpointer({.directory = path}, group);
  training.diloco->add_to(checkpointer);
  checkpointer.add_comm_hook("diloco", *state);
  ASSERT_TRUE(checkpointer.prepare());
  const auto loaded = checkpointer.load_latest();
  ASSERT_TRUE(loaded) << loaded.error().message;
  training.diloco->resume();
}

// After any step: between communications, while one is on its way, and just behind it.
TEST(DiLoCo, GoesOnAfterAnyStepAsIfThereHadBeenNoStop) {
  constexpr std::int64_t kSteps = 14;
  for (const Inner& inner : inner_optimizers()) {
    for (const DiLoCoOptions& options : ways()) {
      SCOPED_TRACE(std::string(inner.name) + " " + describe(options));
      const TempDir folder;
      run_ranks({2}, [&](const GroupPtr& group) {
        const int rank = group->rank();
        Training undisturbed(inner, options);
        undisturbed.diloco->enter(group);
        undisturbed.train(rank, kSteps);
        for (std::int64_t stop = 1; stop < kSteps; stop += 3) {
          const std::string path = folder.path() / std::to_string(stop);
          {
            Training before(inner, options);
            before.diloco->enter(group);
            before.train(rank, stop);
            save(before, group, path);
            before.diloco->leave();
          }
          Training after(inner, options);
          fill(*after.model, 99);
          after.diloco->enter(group);
          load(after, group, path);
          EXPECT_EQ(after.diloco->steps(), stop);
          after.train(rank, kSteps);
          EXPECT_EQ(bytes_of(*after.model), bytes_of(*undisturbed.model))
              << "stopped after " << stop;
        }
      });
    }
  }
}

// Also a run that is resumed from behind the last synchronize(), and synchronizes again.
TEST(DiLoCo, ASecondSynchronizeChangesNothing) {
  const DiLoCoOptions options{.sync_every = 4};
  const TempDir folder;
  run_ranks({2}, [&](const GroupPtr& group) {
    Training before(inner_optimizers()[0], options);
    before.diloco->enter(group);
    before.train(group->rank(), 7);
    before.diloco->synchronize();
    const std::string expected = bytes_of(*before.model);
    save(before, group, folder.path());
    before.diloco->synchronize();
    EXPECT_EQ(bytes_of(*before.model), expected);
    Training after(inner_optimizers()[0], options);
    after.diloco->enter(group);
    load(after, group, folder.path());
    after.diloco->synchronize();
    EXPECT_EQ(bytes_of(*after.model), expected);
  });
}

TEST(DiLoCo, NamesWhatDoesNotFit) {
  Mlp model(kWidths);
  torch::optim::SGD inner(model.parameters(), torch::optim::SGDOptions(0.1));
  const auto complaint = [&](const DiLoCoOptions& options) -> std::string {
    try {
      const DiLoCo diloco(model, inner, options);
    } catch (const std::invalid_argument& wrong) {
      return wrong.what();
    }
    return "accepted";
  };
  EXPECT_EQ(complaint({}), "accepted");
  EXPECT_THAT(complaint({.sync_every = 0}), HasSubstr("sync_every must be at least 1, not 0"));
  EXPECT_THAT(complaint({.fragments = 0}),
              HasSubstr("fragments must be from 1 to the 6 parameters, not 0"));
  EXPECT_THAT(complaint({.sync_every = 14, .fragments = 7}), HasSubstr("not 7"));
  EXPECT_THAT(complaint({.sync_every = 10, .fragments = 3}),
              HasSubstr("sync_every, 10, must be a multiple of fragments, 3"));
  EXPECT_THAT(complaint({.sync_every = 6, .fragments = 3, .fragment_sync_delay = 2}),
              HasSubstr("from 0 to 1"));
  EXPECT_THAT(complaint({.fragment_update_alpha = 1.5}), HasSubstr("fragment_update_alpha"));
  EXPECT_THAT(complaint({.transfer_dtype = at::kLong}), HasSubstr("floating-point"));
  model.layers[1]->to(at::kDouble);
  EXPECT_THAT(complaint({}), HasSubstr("float64"));
  Mlp other(kWidths);
  torch::optim::SGD of_other(other.parameters(), torch::optim::SGDOptions(0.1));
  DiLoCo alone(other, of_other);
  EXPECT_THROW(alone.step(), std::logic_error);
}

// A state that waits for an average while a rank is lost: no fault of the state's.
struct LosesARank {
  CommHookState state() const {
    throw CollectiveError("rank 1 died", make_error_code(Errc::kPeerLost), 1);
  }
  void restore(const CommHookState& /*state*/) {}
};

TEST(DiLoCo, ARankLostWhileStateIsCollectedIsToldAsSuch) {
  const TempDir folder;
  run_ranks({1}, [&](const GroupPtr& group) {
    const auto hook = make_comm_hook(std::make_shared<LosesARank>(),
                                     [](LosesARank&, GradBucket&) { return Future(); });
    Checkpointer checkpointer({.directory = folder.path()}, group);
    checkpointer.add_comm_hook("hook", *hook);
    ASSERT_TRUE(checkpointer.prepare());
    EXPECT_THROW((void)checkpointer.save(1), CollectiveError);
  });
}

// The others hear of it at the next communication, and the object can be taken into another round.
TEST(DiLoCo, ALostRankEndsTheRoundForAll) {
  run_ranks({3}, [&](const GroupPtr& group) {
    Training own(inner_optimizers()[0], {.sync_every = 4, .fragment_sync_delay = 2});
    if (group->rank() == 2) {
      own.diloco->enter(group);
      own.train(group->rank(), 3);
      group->abort("rank 2 is gone");
      return;
    }
    // Perhaps in enter() already.
    const auto train = [&] {
      own.diloco->enter(group);
      own.train(group->rank(), 12);
    };
    EXPECT_THROW(train(), CollectiveError);
    own.diloco->leave();
  });
}

}  // namespace
}  // namespace ddp::test
