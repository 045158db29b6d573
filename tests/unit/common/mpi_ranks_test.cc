// What mpirun says, as Open MPI 4.1 and MPICH 4.0 really set it.
#include "common/config/mpi_ranks.h"

#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/derived_port.h"

namespace ddp::config {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using Environment = std::map<std::string, std::string>;

Result<std::optional<MpiRanks>> read(const Environment& environment) {
  return read_mpi_ranks([&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

MpiRanks ranks_of(const Environment& environment) {
  const auto ranks = read(environment);
  EXPECT_TRUE(ranks) << (ranks ? "" : ranks.error().message);
  EXPECT_TRUE(ranks && *ranks);
  return ranks && *ranks ? **ranks : MpiRanks{};
}

const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "5"},
                              {"OMPI_COMM_WORLD_SIZE", "8"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                              {"PMIX_RANK", "5"},
                              {"PMIX_NAMESPACE", "1005715457"}};
const Environment kHydra = {
    {"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}};

TEST(MpiRanks, OpenMpiSaysAll) {
  EXPECT_EQ(ranks_of(kOpenMpi),
            (MpiRanks{"Open MPI", "OMPI_COMM_WORLD_RANK=5", 5, 8, 4, 1, "1005715457"}));
  EXPECT_FALSE(ranks_of(kOpenMpi).on_one_machine());
  Environment here = kOpenMpi;
  here["OMPI_COMM_WORLD_LOCAL_SIZE"] = "8";
  EXPECT_TRUE(ranks_of(here).on_one_machine());
}

TEST(MpiRanks, HydraSaysAllButTheJob) {
  EXPECT_EQ(ranks_of(kHydra), (MpiRanks{"MPICH's launcher", "PMI_RANK=5", 5, 8, 4, 1, ""}));
}

TEST(MpiRanks, OthersSayLess) {
  EXPECT_EQ(ranks_of({{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}),
            (MpiRanks{"a launcher with PMI", "PMI_RANK=5", 5, 8, {}, {}, ""}));
  EXPECT_EQ(ranks_of({{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "j"}}),
            (MpiRanks{"a launcher with PMIx", "PMIX_RANK=5", 5, {}, {}, {}, ""}));
  EXPECT_FALSE(ranks_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).on_one_machine());
}

TEST(MpiRanks, SrunAndFluxSetPmisVariablesToo) {
  for (const char* nearer : {"SLURM_STEP_ID", "FLUX_TASK_RANK"}) {
    Environment pmi = {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"PMIX_RANK", "5"}, {nearer, "0"}};
    const auto ranks = read(pmi);
    ASSERT_TRUE(ranks) << nearer;
    EXPECT_FALSE(*ranks) << nearer;
    // mpirun inside of an allocation.
    pmi.insert(kHydra.begin(), kHydra.end());
    EXPECT_EQ(ranks_of(pmi).launcher, "MPICH's launcher");
    pmi.insert(kOpenMpi.begin(), kOpenMpi.end());
    EXPECT_EQ(ranks_of(pmi).launcher, "Open MPI");
  }
  const auto none = read({{"PMI_FD", "7"}, {"OMPI_MCA_btl", "tcp"}});
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
}

TEST(MpiRanks, EveryFaultNamesItsVariable) {
  for (const auto& [name, value] : Environment{{"OMPI_COMM_WORLD_RANK", "8"},
                                               {"OMPI_COMM_WORLD_SIZE", "many"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "9"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "4"}}) {
    Environment wrong = kOpenMpi;
    wrong[name] = value;
    const auto ranks = read(wrong);
    ASSERT_FALSE(ranks) << name;
    EXPECT_THAT(ranks.error().message, HasSubstr(name + "=" + value + ": not a number from "));
  }
}

TEST(DerivedPorts, FollowFromTheNameAndDiffer) {
  const auto ports = derived_ports("17.0.0", 16);
  EXPECT_EQ(ports, derived_ports("17.0.0", 16));
  EXPECT_NE(ports, derived_ports("17.1.0", 16));
  EXPECT_THAT(ports, Each(AllOf(Ge(20'000), Le(31'999))));
  EXPECT_EQ(std::set<int>(ports.begin(), ports.end()).size(), 16U);
}

}  // namespace
}  // namespace ddp::config
