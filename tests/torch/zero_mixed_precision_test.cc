// ZeroRedundancyOptimizer in mixed precision against the optimizer that it divides, bit for bit.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "tests/torch/zero_fixture.h"

namespace ddp::test {
namespace {

// Whether the optimizer is divided must not show. The last rank has less input than the others.
void expect_same_in_mixed_precision(const GroupPtr& group, const OptimizerCase& kind,
                                    const MixedPrecision& mixed, bool views) {
  const auto run = [&](bool divided) {
    const auto module = make_mlp(3, kLarge);
    const auto inner = kind.make(module->parameters());
    DistributedDataParallelOptions options = small_buckets(views);
    options.mixed_precision = mixed;
    Model model(module, group, options);
    EitherWay optimizer(*inner, model, divided);
    const int rank = group->rank();
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      {
        const auto apart = model.no_sync();
        loss_of(model.forward(input_of(rank, 10 * step))).backward();
      }
      loss_of(model.forward(input_of(rank, 10 * step + 1))).backward();
      optimizer.step();
    }
    auto join = model.join();
    for (int step = 0; step < (rank + 1 == group->size() ? 1 : 3); ++step) {
      optimizer.zero_grad();
      loss_of(model.forward(input_of(rank, step))).backward();
      optimizer.step();
    }
    EXPECT_EQ(module->parameters()[0].scalar_type(), at::kFloat);
    return bytes_of(*module);
  };
  EXPECT_EQ(run(true) == run(false), true)
      << kind.name << ", " << group->size() << " ranks, views " << views << ", in bfloat16 "
      << (mixed.reduce_dtype == at::kBFloat16);
}

TEST(Zero, IsTheOptimizerBitForBitInMixedPrecision) {
  for (const int world : {1, 2, 3}) {
    for (const bool views : {true, false}) {
      for (const at::ScalarType reduce : {at::kBFloat16, at::kFloat}) {
        // One rank alone reduces nothing without the division, so it does not round sums either.
        if (world == 1 && reduce != at::kFloat) continue;
        MixedPrecision mixed;
        mixed.param_dtype = at::kBFloat16;
        mixed.reduce_dtype = reduce;
        run_ranks({world}, [&](const GroupPtr& group) {
          for (const OptimizerCase& kind : optimizers()) {
            expect_same_in_mixed_precision(group, kind, mixed, views);
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace ddp::test
