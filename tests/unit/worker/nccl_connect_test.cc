#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/base/errc.h"
#include "tests/support/nccl_world.h"
#include "worker/nccl/nccl_api.h"

// Loading the libraries, and how the ranks of a group connect.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::control;
using test::nccl_options;
using test::NcclWorld;
using test::standin_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

class NcclConnect : public test::StandinTest {
 protected:
  // What every rank that calls make() gets; empty for success and for ranks that stay away.
  std::vector<std::string> failures(const std::vector<Rank>& present, int size,
                                    const test::Tweak& tweak = {}) {
    std::vector<std::string> texts(static_cast<std::size_t>(size));
    test::NcclGroups groups(texts.size());
    test::on_ranks(size, [&](Rank rank) {
      if (std::find(present.begin(), present.end(), rank) == present.end()) return;
      NcclGroupOptions options = nccl_options(rank, size, 3);
      options.connect_timeout = milliseconds(500);
      if (tweak) tweak(options);
      try {
        groups[static_cast<std::size_t>(rank)] = NcclGroup::make(library_, store_, options);
      } catch (const CollectiveError& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
        codes_.at(static_cast<std::size_t>(rank)) = error.code;
        suspects_.at(static_cast<std::size_t>(rank)) = error.suspect_rank;
      }
    });
    test::on_ranks(size, [&](Rank rank) { groups[static_cast<std::size_t>(rank)].reset(); });
    return texts;
  }

  std::shared_ptr<const NcclLibrary> library_ = test::standin_library();
  std::shared_ptr<test::HashStore> store_ = std::make_shared<test::HashStore>();
  std::vector<std::error_code> codes_{4};
  std::vector<Rank> suspects_ = std::vector<Rank>(4, -7);
};

TEST_F(NcclConnect, ARankThatDoesNotComeIsNamed) {
  const auto texts = failures({0, 1, 3}, 4);
  for (const std::size_t rank : {0U, 1U, 3U}) {
    EXPECT_EQ(codes_[rank], Errc::kTimeout);
    EXPECT_EQ(suspects_[rank], 2);
    EXPECT_THAT(texts[rank],
                AllOf(HasSubstr("NCCL group 'default' of round 3: rank "),
                      HasSubstr("waited 500 ms for the communicator: not arrived: rank 2")));
  }
}

TEST_F(NcclConnect, RankZeroThatDoesNotComeIsNamed) {
  const auto texts = failures({1, 2}, 3);
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_EQ(codes_[rank], Errc::kTimeout);
    EXPECT_EQ(suspects_[rank], 0);
    EXPECT_THAT(texts[rank], HasSubstr("the id that rank 0 makes: rank 0 has not arrived"));
  }
}

TEST_F(NcclConnect, AConnectionThatHangsThoughAllHaveComeIsSaid) {
  for (const Rank rank : {0, 1}) control().hang_init(rank);
  const auto patient = [](NcclGroupOptions& each) { each.connect_timeout = seconds(3); };
  for (const auto& text : failures({0, 1}, 2, patient)) {
    EXPECT_THAT(text, HasSubstr("all ranks have arrived, but NCCL is still connecting them"));
  }
  EXPECT_EQ(codes_[1], Errc::kTimeout);
  control().release();  // The parked threads end.
}

TEST_F(NcclConnect, WhatFailsOnOneRankIsToldToAll) {
  control().fail_unique_id(nccl::api::kSystemError);
  const auto started = Clock::now();
  const auto texts = failures({0, 1, 2}, 3, [](auto& each) { each.connect_timeout = seconds(60); });
  EXPECT_LT(Clock::now() - started, seconds(10));
  for (const auto& text : texts) {
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0: ncclGetUniqueId: unhandled system error"),
                            HasSubstr("last words of the stand-in")));
  }
  EXPECT_EQ(codes_[2], Errc::kIo);
  EXPECT_EQ(suspects_[2], 0);
}

TEST_F(NcclConnect, ADeviceThatDoesNotExistIsToldToAll) {
  const auto texts = failures({0, 1}, 2, [](NcclGroupOptions& each) {
    each.connect_timeout = seconds(60);
    if (each.rank == 1) each.device = 99;
  });
  for (const auto& text : texts) EXPECT_THAT(text, HasSubstr("rank 1: cudaSetDevice(99)"));
}

TEST_F(NcclConnect, ANameServesOnceInARound) {
  EXPECT_THAT(failures({0}, 1).front(), "");
  EXPECT_THAT(failures({0}, 1).front(),
              HasSubstr("has been made before: give each group of a round a different name"));
  EXPECT_EQ(codes_[0], Errc::kExists);
  EXPECT_THAT(failures({0}, 1, [](auto& each) { each.name = "other"; }).front(), "");
}

TEST_F(NcclConnect, ALaterRoundSharesNothingWithAnEarlierOne) {
  const auto sum = [&](NcclGroup& group, double value) {
    const test::DeviceArray data(group, *library_, DType::kF64, {value});
    group.all_reduce(data.buffer(), ReduceOp::kSum)->wait();
    return data.values().front();
  };
  std::string first_id;
  {
    NcclWorld world(library_, 2, {}, store_, 0);
    // Rank 1 leaves a sum behind that rank 0 never joins.
    const test::DeviceArray stale(world[1], *library_, DType::kF64, {1000.0});
    world.run([&](NcclGroup& group) { EXPECT_EQ(sum(group, 1), 2); });
    const auto work = world[1].all_reduce(stale.buffer(), ReduceOp::kSum);
    world[0].abort("a worker has died");
    EXPECT_THROW(work->wait(), CollectiveError);
    first_id = store_->get("ddp_nccl/0/default/id", seconds(1)).value();
  }
  NcclWorld world(library_, 2, {}, store_, 1);
  world.run([&](NcclGroup& group) {
    EXPECT_EQ(group.round(), 1);
    EXPECT_EQ(sum(group, 10), 20);
  });
  EXPECT_NE(store_->get("ddp_nccl/1/default/id", seconds(1)).value(), first_id);
}

TEST_F(NcclConnect, AnIdThatIsNoneIsRefused) {
  ASSERT_TRUE(store_->set("ddp_nccl/3/default/id", "short"));
  EXPECT_THAT(failures({1}, 2)[1], HasSubstr("has 5 bytes, not 128"));
  EXPECT_EQ(codes_[1], Errc::kProtocol);
}

TEST_F(NcclConnect, OptionsThatMakeNoSenseAreRefused) {
  NcclGroupOptions options = nccl_options(2, 2);
  EXPECT_THROW(NcclGroup::make(library_, store_, options), std::invalid_argument);
}

TEST(NcclLibrary, BeforeItsCallsCouldBeNonBlockingIsRefused) {
  const auto old = NcclLibrary::load({standin_file("libnccl_standin_old.so"), standin_file()});
  ASSERT_FALSE(old);
  EXPECT_EQ(old.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(old.error().message, HasSubstr("NCCL 2.14 or newer is needed"));
}

TEST(NcclLibrary, ToldByItsNameAndVersion) {
  const auto library = test::standin_library();
  EXPECT_EQ(library->version(), 22809);
  EXPECT_EQ(library->version_text(), "2.28.9");
  EXPECT_EQ(library->device_count().value(), 8);
}

TEST(NcclLibrary, ThatIsMissingIsToldWithTheRemedy) {
  const auto nccl = NcclLibrary::load({"libnccl-of-nobody.so.2", standin_file()});
  ASSERT_FALSE(nccl);
  EXPECT_EQ(nccl.error().code, Errc::kNotFound);
  EXPECT_THAT(nccl.error().message,
              AllOf(HasSubstr("cannot load NCCL: libnccl-of-nobody.so.2: cannot open shared object "
                              "file: No such file or directory"),
                    HasSubstr("libnccl2"), HasSubstr("set DDP_NCCL_LIBRARY")));
  const auto cudart = NcclLibrary::load({standin_file(), "libcudart-of-nobody.so"});
  ASSERT_FALSE(cudart);
  EXPECT_THAT(cudart.error().message,
              AllOf(HasSubstr("cannot load the CUDA runtime: libcudart-of-nobody.so"),
                    HasSubstr("set DDP_CUDART_LIBRARY")));
}

TEST(NcclLibrary, ThatIsAnotherOneIsToldByWhatItLacks) {
  const auto nccl = NcclLibrary::load({"libm.so.6", standin_file()});
  ASSERT_FALSE(nccl);
  EXPECT_EQ(nccl.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(nccl.error().message, HasSubstr("libm.so.6 has no function ncclGetVersion"));
  const auto cudart = NcclLibrary::load({standin_file(), "libm.so.6"});
  ASSERT_FALSE(cudart);
  EXPECT_THAT(cudart.error().message, HasSubstr("libm.so.6 has no function cudaGetDeviceCount"));
}

TEST(NcclLibrary, IsNamedByTheEnvironment) {
  ASSERT_EQ(::setenv("DDP_NCCL_LIBRARY", standin_file().c_str(), 1), 0);
  ASSERT_EQ(::setenv("DDP_CUDART_LIBRARY", standin_file().c_str(), 1), 0);
  const auto library = NcclLibrary::load();
  ::unsetenv("DDP_NCCL_LIBRARY");
  ::unsetenv("DDP_CUDART_LIBRARY");
  ASSERT_TRUE(library) << library.error().message;
  EXPECT_EQ((*library)->version_text(), "2.28.9");
}

}  // namespace
}  // namespace ddp
