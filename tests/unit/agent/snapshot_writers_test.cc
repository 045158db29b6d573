// Snapshots that workers hand to their agent, and the processes that write them. A script stands in
// for the writing program; tests/process uses the real one.
#include "agent/process/snapshot_writers.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include <asio/io_context.hpp>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/event_loop.h"
#include "tests/support/process_table.h"
#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Behind `write --snapshot-fd N [--lock-fd M] --round-fd R`.
constexpr const char* kSucceed = "echo '{\"ok\":true}'\n";

class SnapshotWritersTest : public testing::Test {
 protected:
  ~SnapshotWritersTest() override {
    if (writers_) writers_->give_up();
  }

  void make(const std::string& script, Duration quiet_limit = Duration(60'000)) {
    settings_.program = dir_.script("writer", script);
    settings_.environment = {"PATH=/usr/bin:/bin", "DIR=" + dir_.path().string()};
    settings_.quiet_limit = quiet_limit;
    settings_.look = Duration(20);
    writers_ = std::make_unique<SnapshotWriters>(
        io_, settings_,
        SnapshotWriters::Events{
            .on_count = [this](int count) { counts_.push_back(count); },
            .print = [this](const std::string& text) { printed_.push_back(text); }});
  }

  static UniqueFd image(const std::string& text, unsigned seals = F_SEAL_SHRINK) {
    UniqueFd fd(::memfd_create("image", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  }
  static std::vector<UniqueFd> list(UniqueFd first, UniqueFd second = UniqueFd()) {
    std::vector<UniqueFd> fds;
    fds.push_back(std::move(first));
    if (second) fds.push_back(std::move(second));
    return fds;
  }

  void submit(int worker, const std::string& id, std::vector<UniqueFd> descriptors,
              bool locked = false, std::int64_t bytes = 5) {
    writers_->submit(worker, fmt::format("local rank {}", worker), 3, {id, 7, bytes, locked},
                     std::move(descriptors), [this](const wire::SnapshotWritten& written) {
                       answers_.push_back(written);
                       return there_;
                     });
  }
  bool answered(std::size_t count) {
    return test::run_until(io_, [&] { return answers_.size() == count; });
  }
  bool has_file(const std::string& name) {
    return test::run_until(io_, [&] { return !dir_.read(name).empty(); });
  }

  test::TempDir dir_;
  asio::io_context io_;
  SnapshotWriters::Settings settings_;
  std::vector<int> counts_;
  std::vector<std::string> printed_;
  std::vector<wire::SnapshotWritten> answers_;
  bool there_ = true;  // The worker.
  std::unique_ptr<SnapshotWriters> writers_;
};

TEST_F(SnapshotWritersTest, TheWriterGetsImageAndLockAndItsResultGoesToTheWorker) {
  make(
      "echo $1 $2 $4 $6 $(cat /proc/self/fd/$3 /proc/self/fd/$5) $DDP_SNAPSHOT_WRITER > $DIR/got\n"
      "echo progress\n"
      "echo '{\"ok\":true,\"path\":\"/c/7\",\"bytes\":5,\"seconds\":0.5,\"warnings\":[\"slow\"],"
      "\"more\":1}'\n");
  submit(1, "a", list(image("image"), image("lock!")), true);
  ASSERT_TRUE(answered(1));
  EXPECT_EQ(dir_.read("got"), "write --snapshot-fd --lock-fd --round-fd imagelock! 1\n");
  EXPECT_EQ(answers_[0].id, "a");
  EXPECT_TRUE(answers_[0].ok) << answers_[0].error;
  EXPECT_EQ(answers_[0].path, "/c/7");
  EXPECT_EQ(answers_[0].bytes, 5);
  EXPECT_EQ(answers_[0].seconds, 0.5);
  EXPECT_THAT(answers_[0].warnings, ElementsAre("slow"));
  EXPECT_THAT(counts_, ElementsAre(1, 0));
  EXPECT_THAT(printed_, IsEmpty()) << "the worker knows";
}

TEST_F(SnapshotWritersTest, OneOfAWorkerAtATimeInOrderBesideThoseOfOthers) {
  make(
      "echo $(cat /proc/self/fd/$3) >> $DIR/begun\n"
      "until [ -e $DIR/go ]; do sleep 0.01; done\n" +
      std::string(kSucceed));
  submit(1, "a", list(image("first")));
  submit(1, "b", list(image("later")));
  submit(2, "c", list(image("other")));
  ASSERT_TRUE(test::run_until(io_, [this] { return dir_.read("begun").size() == 12; }));
  EXPECT_THAT(dir_.read("begun"), testing::AnyOf("first\nother\n", "other\nfirst\n"));
  EXPECT_EQ(writers_->pids().size(), 2u);
  dir_.write("go", "go");
  ASSERT_TRUE(answered(3));
  EXPECT_THAT(dir_.read("begun"), testing::EndsWith("later\n"));
  EXPECT_EQ(counts_.back(), 0);
}

TEST_F(SnapshotWritersTest, AWriterThatASignalEndsIsStartedAgain) {
  make("[ -e $DIR/tried ] || { touch $DIR/tried; kill -9 $$; }\ncat /proc/self/fd/$3 > $DIR/got\n" +
       std::string(kSucceed));
  submit(1, "a", list(image("image")));
  ASSERT_TRUE(answered(1));
  EXPECT_TRUE(answers_[0].ok) << answers_[0].error;
  EXPECT_EQ(dir_.read("got"), "image");
  EXPECT_THAT(printed_, ElementsAre("the process that writes the checkpoint of step 7 for local "
                                    "rank 1 was ended by SIGKILL; starting it again"));
}

TEST_F(SnapshotWritersTest, ThreeEndsBySignalsAreEnough) {
  make("echo x >> $DIR/runs\necho $* > $DIR/arguments\nkill -SEGV $$\n");
  submit(1, "a", list(image("image")));
  ASSERT_TRUE(answered(1));
  EXPECT_EQ(dir_.read("runs"), "x\nx\nx\nx\n") << "the last one is to tell rank 0";
  EXPECT_FALSE(answers_[0].ok);
  EXPECT_EQ(answers_[0].error, "its writer was ended by SIGSEGV, 3 times");
  EXPECT_THAT(dir_.read("arguments"),
              HasSubstr("--give-up its writer was ended by SIGSEGV, 3 times"));
  EXPECT_EQ(counts_.back(), 0);
}

TEST_F(SnapshotWritersTest, AnErrorIsPassedOnAndNotTriedAgain) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"echo '{\"ok\":false,\"error\":\"/c: the disk is full\"}'; exit 69", "/c: the disk is full"},
      {"echo '{\"ok\":true}'; echo warning >&2; echo no luck >&2; exit 69", "no luck"},
      {"exit 3", "its writer ended with status 3"},
      {"echo nonsense", "its writer ended with status 0"},
      {"echo '{\"ok\":1}'", "its writer ended with status 0"},
      {"head -c 200000 /dev/zero >&2; echo >&2; echo last >&2; exit 1", "last"}};
  for (const auto& [script, error] : cases) {
    answers_.clear();
    make("echo x >> $DIR/runs\n" + script + "\n");
    submit(1, "a", list(image("image")));
    ASSERT_TRUE(answered(1));
    EXPECT_FALSE(answers_[0].ok) << script;
    EXPECT_EQ(answers_[0].error, error) << script;
  }
  EXPECT_EQ(dir_.read("runs").size(), 2 * cases.size());
}

TEST_F(SnapshotWritersTest, WhatIsNoSnapshotIsRefusedWithTheReason) {
  make(kSucceed);
  const auto refusal = [this](std::vector<UniqueFd> descriptors, bool locked = false,
                              std::int64_t bytes = 5) {
    answers_.clear();
    submit(1, "a", std::move(descriptors), locked, bytes);
    if (answers_.size() != 1 || answers_[0].ok || answers_[0].id != "a") return std::string("none");
    return answers_[0].error;
  };
  const UniqueFd file(::open(dir_.write("file", "a file").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_THAT(refusal({}), HasSubstr("0 of 1 descriptors came"));
  EXPECT_THAT(refusal(list(image("image")), true), HasSubstr("1 of 2 descriptors came"));
  EXPECT_THAT(refusal(list(UniqueFd(::dup(file.get())))), HasSubstr("not a memory file"));
  EXPECT_THAT(refusal(list(image("image", F_SEAL_GROW))), HasSubstr("may still shrink"));
  EXPECT_THAT(refusal(list(image("imag"))), HasSubstr("should have 5 bytes, but its memory has 4"));
  EXPECT_THAT(refusal(list(image("image")), false, 0), HasSubstr("should have 0 bytes"));
  EXPECT_THAT(refusal(list(image("image")), false, -1), HasSubstr("should have -1 bytes"));
  EXPECT_THAT(counts_, IsEmpty());
  settings_.program.clear();
  writers_ = std::make_unique<SnapshotWriters>(io_, SnapshotWriters::Settings{},
                                               SnapshotWriters::Events{});
  EXPECT_EQ(writers_->limit(), 0);
  EXPECT_THAT(refusal(list(image("image"))), HasSubstr("no ddp-checkpoint beside it"));
}

TEST_F(SnapshotWritersTest, AThirdSnapshotOfAWorkerIsRefused) {
  make("until [ -e $DIR/go ]; do sleep 0.01; done\n" + std::string(kSucceed));
  submit(1, "a", list(image("image")));
  submit(1, "b", list(image("image")));
  submit(1, "c", list(image("image")));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].id, "c");
  EXPECT_THAT(answers_[0].error, HasSubstr("2 snapshots of this worker are not written yet"));
  submit(2, "d", list(image("image")));
  EXPECT_EQ(answers_.size(), 1u) << "another worker's";
  dir_.write("go", "go");
  ASSERT_TRUE(answered(4));
  submit(1, "e", list(image("image")));
  ASSERT_TRUE(answered(5));
  EXPECT_TRUE(answers_[4].ok);
}

TEST_F(SnapshotWritersTest, AWriterThatHangsIsGivenUp) {
  make("echo up > $DIR/up\nkill -STOP $$\n", Duration(2'000));
  submit(1, "a", list(image("image")));
  ASSERT_TRUE(has_file("up"));
  const pid_t pid = writers_->pids().at(0);
  ASSERT_TRUE(answered(1));
  EXPECT_EQ(answers_[0].error, "its writer hung and was given up");
  EXPECT_THAT(printed_, ElementsAre(fmt::format(
                            "the process that writes the checkpoint of step 7 for local rank 1 "
                            "(pid {}) has done nothing for 2 s; it is given up",
                            pid)));
  EXPECT_TRUE(test::run_until(io_, [this] { return writers_->pids().empty(); }));
  EXPECT_EQ(::kill(pid, 0), -1) << "it was killed and reaped";
}

TEST_F(SnapshotWritersTest, PeopleAreToldOfACallThatStandsTwiceAsLateEachTime) {
  settings_.slow_seconds = 2;
  make(
      "for s in 1 2 3 4 5 9; do echo \"{\\\"call\\\":\\\"fsync\\\",\\\"path\\\":\\\"/c/shard\\\","
      "\\\"seconds\\\":$s,\\\"limit\\\":600}\"\n"
      "until [ -e $DIR/$s ]; do sleep 0.01; done\ndone\n" +
      std::string(kSucceed));
  submit(1, "a", list(image("image")));
  for (const auto& [line, lines] : std::vector<std::pair<std::string, std::size_t>>{
           {"1", 0}, {"2", 1}, {"3", 1}, {"4", 2}, {"5", 2}, {"9", 3}}) {
    if (lines > printed_.size()) {
      ASSERT_TRUE(test::run_until(io_, [&, n = lines] { return printed_.size() == n; })) << line;
    }
    EXPECT_EQ(printed_.size(), lines) << line;
    dir_.write(line, "go");
  }
  ASSERT_TRUE(answered(1));
  EXPECT_TRUE(answers_[0].ok) << answers_[0].error;
  EXPECT_THAT(printed_[0],
              testing::MatchesRegex("checkpoint of step 7: shard has been stuck in fsync "
                                    "for 2 s on .*; training goes on, and the save "
                                    "is given up after 600 s"));
}

// As one whose thread the kernel holds: it has said how it ends, but does not.
TEST_F(SnapshotWritersTest, AWriterThatGivesUpButIsHeldIsLeft) {
  make("echo '{\"ok\":false,\"error\":\"/c/shard stood\"}'\nkill -STOP $$\n");
  submit(1, "a", list(image("image")));
  ASSERT_TRUE(answered(1));
  EXPECT_EQ(answers_[0].error, "/c/shard stood");
  EXPECT_THAT(printed_, IsEmpty());
  EXPECT_TRUE(test::run_until(io_, [this] { return writers_->pids().empty(); }));
}

TEST_F(SnapshotWritersTest, AWriterLearnsThatTheRoundIsOver) {
  make(
      "while [ $1 != --round-fd ]; do shift; done\necho up > $DIR/up\n"
      "read line < /dev/fd/$2 && echo $line > $DIR/over\n" +
      std::string(kSucceed));
  submit(1, "a", list(image("image")));
  ASSERT_TRUE(has_file("up"));
  EXPECT_EQ(dir_.read("over"), "");
  writers_->round_ended();
  ASSERT_TRUE(answered(1));
  EXPECT_EQ(dir_.read("over"), "over\n");
}

TEST_F(SnapshotWritersTest, AWriterLearnsWhichRanksAreLostAlsoWhenItStartsAgain) {
  make(
      "while [ $1 != --round-fd ]; do shift; done\n"
      "if [ ! -f $DIR/up ]; then echo up > $DIR/up; head -n 2 /dev/fd/$2; kill -9 $$; fi\n"
      "head -n 2 /dev/fd/$2 > $DIR/news\n" +
      std::string(kSucceed));
  submit(1, "a", list(image("image")));
  ASSERT_TRUE(has_file("up"));
  writers_->ranks_lost(2, {0});  // Of another round.
  writers_->round_ended();
  writers_->round_ended();
  writers_->ranks_lost(3, {4, 5});
  ASSERT_TRUE(answered(1));
  EXPECT_EQ(dir_.read("news"), "over\nlost 4 5\n");
}

TEST_F(SnapshotWritersTest, AWriterThatWaitsAndLooksAgainIsNotGivenUp) {
  // It waits for longer than the limit, which is long enough for a machine that has much to do.
  // In one process without files, so that waking up is all that it shows.
  make(
      "exec python3 -c 'import time\n"
      "for i in range(35): time.sleep(0.2)\n"
      "print(\"{\\\"ok\\\":true}\")'\n",
      Duration(5000));
  submit(1, "a", list(image("image")));
  ASSERT_TRUE(answered(1));
  EXPECT_TRUE(answers_[0].ok) << answers_[0].error;
}

TEST_F(SnapshotWritersTest, WhereTheWorkerHasEndedPeopleAreToldOnce) {
  there_ = false;
  make("echo '{\"ok\":true,\"path\":\"/c/7\"}'\n");
  submit(1, "a", list(image("image")));
  ASSERT_TRUE(answered(1));
  make(kSucceed);  // A rank that has not published.
  submit(2, "b", list(image("image")));
  ASSERT_TRUE(answered(2));
  make("echo full >&2; exit 69\n");
  submit(3, "c", list(image("image")));
  ASSERT_TRUE(answered(3));
  EXPECT_THAT(printed_,
              ElementsAre("the checkpoint of step 7 was finished after its worker had ended: /c/7",
                          "the checkpoint of step 7 was not finished by local rank 3, whose worker "
                          "has ended: full"));
}

TEST_F(SnapshotWritersTest, WhatAsksAJobToEndIsNotForWriters) {
  make("for s in HUP INT QUIT TERM USR1 USR2; do kill -$s $$; done\n" + std::string(kSucceed));
  submit(1, "a", list(image("image")));
  ASSERT_TRUE(answered(1));
  EXPECT_TRUE(answers_[0].ok) << answers_[0].error;
  EXPECT_THAT(printed_, IsEmpty());
}

TEST_F(SnapshotWritersTest, WritersHaveLowPriorityAndASessionOfTheirOwn) {
  make(
      "until [ $(nice) = 10 ]; do :; done\nuntil ionice -p $$ | grep -q 'best-effort: prio 7'; do "
      ":; done\ncut -d' ' -f1,6 /proc/$$/stat > $DIR/got\n" +
      std::string(kSucceed));
  submit(1, "a", list(image("image")));
  const pid_t pid = writers_->pids().at(0);
  ASSERT_TRUE(answered(1));
  EXPECT_EQ(dir_.read("got"), fmt::format("{} {}\n", pid, pid));
}

TEST_F(SnapshotWritersTest, AProgramThatCannotBeStartedIsAnError) {
  make("");
  dir_.write("writer", "#!/no/such/program\n", 0755);
  submit(1, "a", list(image("image")));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_THAT(answers_[0].error, HasSubstr("writer: cannot be executed"));
  EXPECT_EQ(counts_.back(), 0);
}

}  // namespace
}  // namespace ddp::agent
