#include "worker/ddp/hooks/hook_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/torch/hooks/hook_training.h"
#include "worker/ddp/hooks/power_sgd_state.h"

// Hooks by their names.
namespace ddp {
namespace {

using test::GroupPtr;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const std::string& text) {
  try {
    check_comm_hook_text(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(HookTextTest, EveryNameMakesItsHook) {
  run_ranks({2}, [](const GroupPtr& group) {
    for (const char* name :
         {"allreduce", "fp16", "bf16", "powersgd", "batched_powersgd", "quantize_per_tensor",
          "quantize_per_channel", "post_localsgd", "noop", "fp16+powersgd", "bf16+fp16+noop"}) {
      EXPECT_EQ(make_comm_hook_from_text(name, group)->name(), name);
      EXPECT_EQ(make_model_averager_from_text(name, group) != nullptr,
                std::string(name) == "post_localsgd");
      EXPECT_THAT(comm_hook_help(), HasSubstr(std::string(name).substr(0, 4)));
    }
  });
}

TEST(HookTextTest, KeysReachTheOptions) {
  run_ranks({1}, [](const GroupPtr& group) {
    const auto options_of = [&group](const std::string& text) {
      return make_comm_hook_from_text(text, group)->state().values.at("options");
    };
    const nlohmann::json set = {{"matrix_approximation_rank", 3},    {"min_compression_rate", 0.5},
                                {"use_error_feedback", false},       {"warm_start", false},
                                {"orthogonalization_epsilon", 1e-8}, {"random_seed", 7}};
    EXPECT_EQ(options_of("powersgd:rank=3,start_iter=0,min_rate=0.5,error_feedback=off,"
                         "warm_start=no,epsilon=1e-8,seed=7,stats_frequency=5,"
                         "batch_same_shape=true"),
              set);
    EXPECT_EQ(options_of("powersgd:matrix_approximation_rank=3,start_powerSGD_iter=0,"
                         "min_compression_rate=0.5,use_error_feedback=0,warm_start=false,"
                         "orthogonalization_epsilon=1e-8,random_seed=7,"
                         "compression_stats_logging_frequency=5,"
                         "batch_tensors_with_same_shape=1"),
              set);
    EXPECT_NE(options_of("powersgd"), set);
  });
}

TEST(HookTextTest, WhatIsWrongIsSaidWithWhatThereIs) {
  EXPECT_THAT(error_of("powersdg"),
              AllOf(HasSubstr("no communication hook \"powersdg\""),
                    HasSubstr("allreduce, fp16, bf16, powersgd, batched_powersgd, "
                              "quantize_per_tensor, quantize_per_channel, post_localsgd, noop"),
                    HasSubstr("fp16+ or bf16+")));
  EXPECT_THAT(error_of(""), HasSubstr("no communication hook \"\""));
  EXPECT_THAT(error_of("fp32+powersgd"),
              AllOf(HasSubstr("\"fp32+\" cannot come before"), HasSubstr("fp16+ and bf16+")));
  EXPECT_THAT(error_of("powersgd:rnk=2"), AllOf(HasSubstr("powersgd has no key \"rnk\""),
                                                HasSubstr("it has rank, start_iter")));
  EXPECT_THAT(error_of("allreduce:rank=2"),
              AllOf(HasSubstr("allreduce has no key \"rank\""), HasSubstr("it takes none")));
  for (const char* value : {"two", "", "0", "-1", "2.5", "2 ", "99999999999"}) {
    EXPECT_THAT(error_of(std::string("powersgd:rank=") + value),
                AllOf(HasSubstr(std::string("powersgd is given rank=\"") + value +
                                "\", which is "
                                "not a whole number of at least 1 (default: 1)"),
                      HasSubstr("it has rank,")));
  }
  EXPECT_THAT(error_of("powersgd:min_rate=nan"), HasSubstr("not a number of at least 0"));
  EXPECT_THAT(error_of("powersgd:min_rate=inf"), HasSubstr("not a number of at least 0"));
  EXPECT_THAT(error_of("powersgd:warm_start=maybe"), HasSubstr("neither true nor false"));
  EXPECT_THAT(error_of("powersgd:rank"), HasSubstr("needs a value: rank="));
  EXPECT_THAT(error_of("powersgd:rank=1,matrix_approximation_rank=2"), HasSubstr("rank twice"));
  EXPECT_THAT(error_of("powersgd:"), HasSubstr("nothing follows the colon"));
  EXPECT_THAT(error_of("powersgd:start_iter=1"), HasSubstr("must be greater than 1"));
  EXPECT_THAT(error_of("post_localsgd:period=2,hierarchy=2x2"), HasSubstr("not both"));
  EXPECT_THAT(error_of("post_localsgd:hierarchy=2x2/4"), HasSubstr("PERIODxSIZE"));
  EXPECT_EQ(error_of("post_localsgd:hierarchy=2x2/4x4,start_iter=7"), "accepted");
  EXPECT_EQ(error_of("fp16+powersgd:rank=2,start_iter=10"), "accepted");
}

}  // namespace
}  // namespace ddp
