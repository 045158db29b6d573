#include "launcher/hosting/meeting_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace ddp::hosting {
namespace {

using testing::HasSubstr;

class MeetingFileTest : public testing::Test {
 protected:
  // As plan_job() makes it: this ddp-run would host.
  plan::JobPlan plan(const std::string& job_id = "job 7") const {
    plan::JobPlan plan;
    plan.meeting_file = path_;
    plan.endpoint_flag = "--rdzv-endpoint " + path_;
    plan.host = true;
    plan.spec.job_id = job_id;
    plan.spec.host = "node0";
    plan.spec.coordinator_host = "127.0.0.1";
    plan.spec.rules.join_timeout_ms = 50;
    return plan;
  }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }

  const test::TempDir folder_;
  const std::string path_ = (folder_.path() / "meeting").string();
};

TEST_F(MeetingFileTest, PlacesComeBackAsTheyWereWritten) {
  const std::vector<MeetingPlace> places{{"10.0.0.1", 29400, "node0", "job 7 of mine"},
                                         {"fd00::1", 7, "n1", "none"}};
  EXPECT_EQ(decode_meeting_file(encode_meeting_file(places)).value(), places);
  EXPECT_TRUE(decode_meeting_file("")->empty());
  EXPECT_FALSE(decode_meeting_file("something else\n"));
  EXPECT_FALSE(decode_meeting_file(encode_meeting_file({}) + "10.0.0.1 99999 node0 job\n"));
  EXPECT_FALSE(decode_meeting_file(encode_meeting_file({}) + "10.0.0.1\n"));
}

TEST_F(MeetingFileTest, IsItsUsersAlone) {
  const mode_t before = ::umask(0);
  plan::JobPlan first = plan();
  const auto file = MeetingFile::enter(first);
  ::umask(before);
  ASSERT_TRUE(file) << file.error().message;
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(MeetingFileTest, TheFirstHostsAndWritesWhere) {
  plan::JobPlan first = plan();
  auto file = MeetingFile::enter(first);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE(first.host);
  first.spec.coordinator_port = 1;
  ASSERT_TRUE(file->announce(first));
  EXPECT_THAT(text(), HasSubstr("127.0.0.1 1 node0 job 7\n"));
}

TEST_F(MeetingFileTest, OneAtATime) {
  plan::JobPlan first = plan();
  const auto file = MeetingFile::enter(first);
  plan::JobPlan second = plan();
  const auto other = MeetingFile::enter(second);
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("locked"));
}

// Nobody listens at port 1.
TEST_F(MeetingFileTest, AnEarlierJobThatIsGoneDoesNotMislead) {
  folder_.write("meeting", encode_meeting_file({{"127.0.0.1", 1, "node0", "job 7"},
                                                {"127.0.0.1", 2, "node0", "another"}}));
  plan::JobPlan late = plan();
  auto file = MeetingFile::enter(late);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE(late.host);
  late.spec.coordinator_port = 3;
  ASSERT_TRUE(file->announce(late));
  EXPECT_EQ(decode_meeting_file(text()).value(),
            (std::vector<MeetingPlace>{{"127.0.0.1", 2, "node0", "another"},
                                       {"127.0.0.1", 3, "node0", "job 7"}}));
}

TEST_F(MeetingFileTest, SomebodyElsesFileIsLeftAlone) {
  folder_.write("meeting", "precious\n");
  plan::JobPlan job = plan();
  const auto file = MeetingFile::enter(job);
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr("it belongs to another program"));
  EXPECT_EQ(text(), "precious\n");
  job.meeting_file = "/nowhere/meeting";
  EXPECT_THAT(MeetingFile::enter(job).error().message, HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace ddp::hosting
