// Messages of ddp::Trainer that a new user sees.
#include <functional>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/trainer_fixture.h"
#include "worker/ddp/trainer/early_stopping.h"
#include "worker/ddp/trainer/model_checkpoint.h"

namespace ddp::test {
namespace {

using namespace trainer_sample;
using testing::AllOf;
using testing::HasSubstr;

TEST(Trainer, SaysWhatIsWrong) {
  const auto with = [](const std::function<void(TrainerOptions&)>& change) {
    return complaint([&] {
      TrainerOptions options;
      change(options);
      const Trainer trainer(options);
    });
  };
  EXPECT_THAT(
      with([](auto& o) { o.strategy = "ddp_spawn"; }),
      HasSubstr("strategy \"ddp_spawn\": expected one of ddp, ddp_step, dp, single, zero1"));
  EXPECT_THAT(with([](auto& o) { o.strategy = "zero"; }), HasSubstr("did you mean zero1?"));
  EXPECT_THAT(with([](auto& o) { o.precision = "16-mixed"; }), HasSubstr("bf16-mixed needs none"));
  EXPECT_THAT(with([](auto& o) { o.precision = "bf16"; }), HasSubstr("expected one of"));
  EXPECT_THAT(with([](auto& o) {
                o.precision = "bf16-mixed";
                o.strategy = "ddp_step";
              }),
              HasSubstr("expected strategy \"ddp\", \"zero1\" or \"single\""));
  EXPECT_THAT(with([](auto& o) { o.accelerator = "tpu"; }),
              HasSubstr("accelerator \"tpu\": expected one of auto, cpu, cuda, gpu"));
  EXPECT_THAT(with([](auto& o) { o.accumulate_grad_batches = 0; }),
              HasSubstr("accumulate_grad_batches 0: expected at least 1"));
  EXPECT_THAT(with([](auto& o) { o.limit_val_batches = 1.5; }),
              HasSubstr("limit_val_batches 1.500000: expected a number of batches, or a part"));
  EXPECT_THAT(with([](auto& o) { o.num_nodes = 2; }),
              AllOf(HasSubstr("started alone"), HasSubstr("ddp-run --nnodes 2")));
  EXPECT_THAT(with([](auto& o) {
                o.strategy = "single";
                o.devices = 2;
              }),
              HasSubstr("strategy \"single\" with devices 2"));
  EXPECT_THAT(complaint([] { EarlyStopping({.monitor = ""}); }), HasSubstr("monitor is empty"));
  EXPECT_THAT(complaint([] { ModelCheckpoint({.monitor = "a", .mode = "least"}); }),
              HasSubstr("mode \"least\": expected \"min\" or \"max\""));
}

TEST(Trainer, SaysWhatIsWrongWithATraining) {
  const auto net = std::make_shared<Net>();
  const auto fit = [&](const std::function<void(TrainerOptions&)>& change,
                       const DataLoader& train = loader()) {
    return complaint_of([&](Trainer& trainer) { trainer.fit(net, train, loader()); }, change);
  };
  const auto nothing = [](TrainerOptions&) {};
  EXPECT_THAT(fit(nothing, DataLoader{}), HasSubstr("fit: no data set"));
  DataLoader empty_batches = loader();
  empty_batches.batch_size = 0;
  EXPECT_THAT(fit(nothing, empty_batches), HasSubstr("batch_size 0: expected at least 1"));
  EXPECT_THAT(fit(nothing, loader(2, /*drop_last=*/true)),
              HasSubstr("take 3 samples an update, expected at most the 2 of the data set"));
  EXPECT_THAT(fit([](TrainerOptions& options) {
                options.callbacks = {
                    std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "loss"})};
              }),
              AllOf(HasSubstr("EarlyStopping monitors \"loss\", which nobody has logged"),
                    HasSubstr("val_loss")));
  EXPECT_THAT(fit([](TrainerOptions& options) {
                options.callbacks = {std::make_shared<ModelCheckpoint>(
                    ModelCheckpointOptions{.monitor = "val_loss"})};
              }),
              HasSubstr("nowhere to save"));
  EXPECT_THAT(
      fit([](TrainerOptions& options) { options.comm_hook = "post_localsgd:start_iter=2"; }),
      HasSubstr("comm_hook \"post_localsgd:start_iter=2\": expected a hook that leaves"));
  EXPECT_THAT(complaint_of([](Trainer& trainer) { trainer.fit(nullptr, loader()); }),
              HasSubstr("no module"));
  EXPECT_THAT(complaint_of([&](Trainer& trainer) { trainer.test(net, loader(), "best"); }),
              HasSubstr("no ModelCheckpoint"));
  EXPECT_THAT(complaint_of([&](Trainer& trainer) { trainer.test(net, loader(), "last"); }),
              HasSubstr("no default_root_dir"));
  EXPECT_THAT(complaint_of([&](Trainer& trainer) { trainer.test(net, loader(), "/no/such"); }),
              HasSubstr("/no/such"));
  EXPECT_THAT(complaint([&] { net->log("a", 1); }), HasSubstr("outside of a step"));
  EXPECT_THAT(complaint([&] {
                TensorDataset({at::zeros({2}), at::zeros({3})});
              }),
              HasSubstr("the first has 2 and another 3"));
}

}  // namespace
}  // namespace ddp::test
