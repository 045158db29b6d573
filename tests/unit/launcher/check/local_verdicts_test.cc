// Each limit of a node's own facts: at it all is well, one beyond it is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launcher/check/verdict/verdict.h"

namespace ddp::check {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMiB = 1 << 20;

// Two workers of eight on a node of two, which has just what it needs.
LocalFacts enough() {
  LocalFacts facts;
  facts.host = "n1";
  facts.workers = 2;
  facts.world_size = 8;
  facts.nodes = 2;
  facts.shm_free = 256 * kMiB;
  facts.memory = 1'024 * kMiB;
  facts.memory_source = "memory.max of /x";
  facts.locked_memory = 2'048 * kMiB;
  facts.has_rdma = true;
  facts.soft_files = 544;
  facts.hard_files = 288;
  facts.name_addresses = {"127.0.1.1", "10.0.0.1"};
  facts.name_ms = 2'000;
  facts.folder = FolderFacts{.path = "/ckpt",
                             .error = "",
                             .free_bytes = 1'024 * kMiB,
                             .free_inodes = 1'000,
                             .mb_per_s = 10,
                             .sync_ms = 1'000};
  facts.gpu_files = 1;
  facts.gpus = {{.index = 0,
                 .name = "H100",
                 .error = "",
                 .uncorrected_errors = 0,
                 .used_bytes = 2'048 * kMiB,
                 .total_bytes = 81'559 * kMiB}};
  return facts;
}

struct Case {
  const char* thing;
  void (*change)(LocalFacts&);
  const char* measured;
  const char* limit;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"/dev/shm", [](LocalFacts& f) { --f.shm_free; }, "256.0 MiB free", "at least 256.0 MiB"},
      {"/dev/shm", [](LocalFacts& f) { f.shm_error = "No such file"; }, "No such file",
       "at least 256.0 MiB"},
      {"memory", [](LocalFacts& f) { f.memory -= kMiB; }, "1023.0 MiB (memory.max of /x)",
       "at least 1.0 GiB"},
      {"shared memory", [](LocalFacts& f) { f.memfd_error = "File too large"; }, "File too large",
       ""},
      {"locked memory", [](LocalFacts& f) { f.locked_memory = 64 * 1'024; }, "64.0 KiB",
       "at least 2.0 GiB"},
      {"open files", [](LocalFacts& f) { --f.soft_files; }, "543", "at least 544"},
      {"open files (hard)", [](LocalFacts& f) { --f.hard_files; }, "287", "at least 288"},
      {"own name",
       [](LocalFacts& f) {
         f.name_addresses = {"127.0.1.1", "::1"};
       },
       "127.0.1.1, ::1 in 2000 ms", "an address of the network, within 2 s"},
      {"own name", [](LocalFacts& f) { f.name_ms = 2'001; }, "127.0.1.1, 10.0.0.1 in 2001 ms",
       "an address of the network, within 2 s"},
      {"own name", [](LocalFacts& f) { f.name_error = "n1 has no address"; }, "n1 has no address",
       "an address of the network, within 2 s"},
      {"checkpoint folder", [](LocalFacts& f) { f.folder->error = "Permission denied"; },
       "/ckpt: Permission denied", ""},
      {"free disk", [](LocalFacts& f) { f.folder->free_bytes -= kMiB; }, "1023.0 MiB at /ckpt",
       "at least 1.0 GiB"},
      {"free inodes", [](LocalFacts& f) { --f.folder->free_inodes; }, "999", "at least 1000"},
      {"write speed", [](LocalFacts& f) { f.folder->mb_per_s = 9; }, "9 MB/s", "at least 10 MB/s"},
      {"fsync", [](LocalFacts& f) { f.folder->sync_ms = 1'000.1; }, "1000.1 ms", "at most 1000 ms"},
      {"GPU 0", [](LocalFacts& f) { f.gpus[0].error = "GPU is lost"; }, "GPU is lost", ""},
      {"GPU 0", [](LocalFacts& f) { f.gpus[0].uncorrected_errors = 1; },
       "H100: 1 uncorrected memory errors", "0 errors"},
      {"GPU 0", [](LocalFacts& f) { f.gpus[0].remapping_failed = true; },
       "H100: a bad row of its memory could not be replaced", "0 errors"},
      {"GPU 0", [](LocalFacts& f) { f.gpus[0].remapping_pending = true; },
       "H100: a row of its memory waits to be replaced", ""},
      {"GPUs", [](LocalFacts& f) { f.gpu_files = 2; }, "1", "at least 2 (device files)"},
  };
  return all;
}

std::vector<Verdict> failed(const LocalFacts& facts) {
  std::vector<Verdict> found;
  for (const Verdict& verdict : judge_node(0, facts)) {
    if (verdict.state != State::kOk) found.push_back(verdict);
  }
  return found;
}

TEST(LocalVerdicts, AtEachLimitAllIsWell) {
  for (const Verdict& verdict : judge_node(0, enough())) {
    EXPECT_EQ(verdict.state, State::kOk) << verdict.thing << ": " << verdict.measured;
    EXPECT_EQ(verdict.remedy, "") << verdict.thing;
  }
  EXPECT_TRUE(is_fit(judge_node(0, enough())));
  EXPECT_EQ(what_failed(judge_node(0, enough())), "");
}

TEST(LocalVerdicts, BeyondEachLimitTheThingTheValueAndTheRemedyAreNamed) {
  for (const Case& one : cases()) {
    LocalFacts facts = enough();
    one.change(facts);
    const auto verdicts = failed(facts);
    ASSERT_EQ(verdicts.size(), 1u) << one.thing << " " << one.measured;
    EXPECT_EQ(verdicts[0].thing, one.thing);
    // gloo breaks without a name, but not every job.
    const bool warns = verdicts[0].thing == "own name";
    EXPECT_EQ(verdicts[0].state, warns ? State::kWarning : State::kFailed);
    EXPECT_EQ(is_fit(verdicts), warns);
    EXPECT_EQ(verdicts[0].measured, one.measured);
    EXPECT_EQ(verdicts[0].limit, one.limit);
    EXPECT_NE(verdicts[0].remedy, "");
  }
}

TEST(LocalVerdicts, WhatTheNodeDoesNotNeedDoesNotMatter) {
  LocalFacts facts = enough();
  facts.nodes = 1;
  facts.name_addresses = {"127.0.1.1"};
  facts.has_rdma = false;
  facts.locked_memory = 64 * 1'024;
  facts.soft_files = facts.hard_files = -1;
  facts.folder.reset();
  facts.gpu_files = 0;
  facts.gpus.clear();
  EXPECT_TRUE(failed(facts).empty());
}

TEST(LocalVerdicts, AGpuInUseAndAMissingLibraryAreOnlyWarnings) {
  LocalFacts facts = enough();
  facts.gpus[0].used_bytes += 1;
  ASSERT_EQ(failed(facts).size(), 1u);
  EXPECT_EQ(failed(facts)[0].state, State::kWarning);
  EXPECT_NE(failed(facts)[0].remedy, "");
  facts = enough();
  facts.gpus.clear();
  facts.nvml_error = "no library";
  ASSERT_EQ(failed(facts).size(), 1u);
  EXPECT_EQ(failed(facts)[0].state, State::kWarning);
  EXPECT_TRUE(is_fit(judge_node(0, facts)));
}

TEST(LocalVerdicts, AreOneLineForTheCoordinator) {
  LocalFacts facts = enough();
  facts.soft_files = 256;
  facts.folder->error = "Permission denied";
  EXPECT_EQ(what_failed(judge_node(0, facts)),
            "open files: 256 (at least 544); checkpoint folder: /ckpt: Permission denied");
}

TEST(LocalVerdicts, TheTableHasTheRemediesBelow) {
  LocalFacts facts = enough();
  facts.soft_files = 256;
  const std::string text = table(judge_node(0, facts));
  EXPECT_THAT(text, testing::StartsWith("NODE  CHECK "));
  EXPECT_THAT(text, testing::ContainsRegex("\nn1    open files +failed +256 +at least 544\n"));
  EXPECT_THAT(text, HasSubstr("\nWhat to do:\nopen files on n1: ulimit -n 65536"));
  EXPECT_THAT(text, testing::Not(HasSubstr("All is well")));
}

TEST(LocalVerdicts, TheTableEndsWithAWordIfAllIsWell) {
  const std::string text = table(judge_node(0, enough()));
  EXPECT_THAT(text, testing::Not(HasSubstr("What to do")));
  EXPECT_THAT(text, testing::EndsWith("\n\nAll is well: each of 13 checks passed.\n"));
}

TEST(LocalVerdicts, JsonHasTheSame) {
  LocalFacts facts = enough();
  facts.host = "n1\xFF";
  facts.soft_files = 256;
  const auto json = nlohmann::json::parse(json_text(judge_node(0, facts)));
  EXPECT_EQ(json.at("fit"), false);
  ASSERT_EQ(json.at("nodes").size(), 1u);
  EXPECT_EQ(json["nodes"][0].at("fit"), false);
  int found = 0;
  for (const auto& check : json["nodes"][0].at("checks")) {
    if (check.at("state") == "ok") continue;
    ++found;
    EXPECT_EQ(check.at("check"), "open files");
    EXPECT_EQ(check.at("state"), "failed");
    EXPECT_EQ(check.at("measured"), "256");
    EXPECT_EQ(check.at("limit"), "at least 544");
    EXPECT_THAT(check.at("remedy"), HasSubstr("ulimit -n"));
  }
  EXPECT_EQ(found, 1);
}

TEST(Facts, GoThroughJson) {
  NodeFacts facts{.node = 3, .local = enough(), .peers = {}};
  PeerFacts peer;
  peer.node = 1;
  peer.address = "10.0.0.2:77";
  peer.mb_per_s = 7;
  facts.peers.push_back(peer);
  const auto back = decode_node_facts(encode(facts));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(encode(*back), encode(facts));
  EXPECT_EQ(back->local.folder->sync_ms, 1'000);
  EXPECT_EQ(back->local.gpus.at(0).name, "H100");
  EXPECT_EQ(back->peers.at(0).mb_per_s, 7);
  EXPECT_FALSE(decode_node_facts("x"));
  EXPECT_FALSE(decode_node_facts("[]"));
}

}  // namespace
}  // namespace ddp::check
