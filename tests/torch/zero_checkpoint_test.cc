// Checkpoints of ZeroRedundancyOptimizer: those of the optimizer that it divides, on any number of
// ranks.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "tests/torch/zero_fixture.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/zero/zero_redundancy_optimizer.h"

namespace ddp::test {
namespace {

// What a training has after `steps`, saved and loaded in between at other numbers of ranks, with
// and without the division.
struct Resumption {
  int ranks;
  bool divided;
  int until;
};

std::string resumed(const OptimizerCase& kind, const std::vector<Resumption>& parts) {
  const TempDir folder;
  std::string bytes;
  int done = 0;
  for (const Resumption& part : parts) {
    run_ranks({part.ranks}, [&](const GroupPtr& group) {
      const auto module = make_mlp(static_cast<std::uint64_t>(3 + done), kLarge);
      const auto optimizer = kind.make(module->parameters());
      Model model(module, group, small_buckets());
      std::unique_ptr<ZeroRedundancyOptimizer> zero;
      if (part.divided) zero = std::make_unique<ZeroRedundancyOptimizer>(*optimizer, model);
      CheckpointOptions options;
      options.directory = (folder.path() / "run").string();
      Checkpointer checkpointer(options, group);
      checkpointer.add_module("model", *module);
      if (zero) {
        checkpointer.add_optimizer("optimizer", *zero, *module);
      } else {
        checkpointer.add_optimizer("optimizer", *optimizer, *module);
      }
      ASSERT_TRUE(checkpointer.prepare());
      const auto loaded = checkpointer.load_latest();
      ASSERT_TRUE(loaded) << loaded.error().message;
      ASSERT_EQ(loaded->step, done == 0 ? -1 : done);
      // All ranks have the same input, so their number does not matter.
      if (zero) {
        train(model, 0, done, part.until, *zero);
      } else {
        train(model, 0, done, part.until, *optimizer);
      }
      ASSERT_TRUE(checkpointer.save(part.until));
      ASSERT_TRUE(checkpointer.wait());
      if (group->rank() == 0) bytes = bytes_of(*module);
    });
    done = part.until;
  }
  return bytes;
}

TEST(Zero, CheckpointsAreThoseOfTheOptimizerAloneOnAnyNumberOfRanks) {
  for (const OptimizerCase& kind : optimizers()) {
    const std::string expected = resumed(kind, {{2, false, 6}});
    EXPECT_EQ(resumed(kind, {{2, true, 6}}) == expected, true) << kind.name;
    EXPECT_EQ(resumed(kind, {{2, true, 3}, {2, true, 6}}) == expected, true) << kind.name;
    EXPECT_EQ(resumed(kind, {{2, true, 2}, {4, true, 4}, {2, true, 6}}) == expected, true)
        << kind.name;
    EXPECT_EQ(resumed(kind, {{2, true, 2}, {1, false, 4}, {4, true, 6}}) == expected, true)
        << kind.name;
  }
}

// Channels-last parameters lie in memory in another order than they are written in.
TEST(Zero, PartsOfParametersThatAreNotRowMajor) {
  const auto run = [](bool divided, bool stop) {
    std::string bytes;
    const TempDir folder;
    for (int part = stop ? 0 : 1; part < 2; ++part) {
      run_ranks({2}, [&](const GroupPtr& group) {
        const auto module = std::make_shared<ConvNet>(false);
        fill(*module, 9);
        for (at::Tensor& parameter : module->parameters()) {
          if (parameter.dim() == 4)
            parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
        }
        torch::optim::Adam adam(module->parameters(), torch::optim::AdamOptions(0.01));
        DistributedDataParallel<ConvNet> model(module, group, small_buckets());
        EitherWay optimizer(adam, model, divided);
        CheckpointOptions options;
        options.directory = (folder.path() / "run").string();
        Checkpointer checkpointer(options, group);
        checkpointer.add_module("model", *module);
        if (ZeroRedundancyOptimizer* zero = optimizer.zero()) {
          checkpointer.add_optimizer("optimizer", *zero, *module);
        } else {
          checkpointer.add_optimizer("optimizer", adam, *module);
        }
        ASSERT_TRUE(checkpointer.prepare());
        ASSERT_TRUE(checkpointer.load_latest());
        for (int step = stop && part == 1 ? 2 : 0; step < 2 + 2 * part; ++step) {
          optimizer.zero_grad();
          const at::Tensor images =
              random_tensor({3, 1, 28, 28}, static_cast<std::uint64_t>(10 * step + group->rank()));
          model.forward(images).pow(2).sum().backward();
          optimizer.step();
        }
        ASSERT_TRUE(checkpointer.save(2 + 2 * part));
        ASSERT_TRUE(checkpointer.wait());
        if (group->rank() == 0) bytes = bytes_of(*module);
      });
    }
    return bytes;
  };
  const std::string expected = run(false, false);
  EXPECT_EQ(run(true, false) == expected, true);
  EXPECT_EQ(run(true, true) == expected, true);
}

}  // namespace
}  // namespace ddp::test
