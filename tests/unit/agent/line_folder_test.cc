#include "agent/process/line_folder.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::agent {
namespace {

using testing::ElementsAre;

constexpr TimePoint kStart{std::chrono::hours(1)};

std::vector<std::string> texts(const std::vector<LineFolder::Line>& lines) {
  std::vector<std::string> all;
  for (const LineFolder::Line& line : lines) {
    std::string text = line.text + " ";
    for (const int member : line.members) text += std::to_string(member);
    all.push_back(text);
  }
  return all;
}

LineFolder folder_of(int members) {
  LineFolder folder(Duration(100));
  folder.begin(members);
  return folder;
}

TEST(LineFolder, ALineOfAllIsShownAtOnce) {
  LineFolder folder = folder_of(3);
  folder.add(kStart, 2, "a");
  folder.add(kStart, 0, "a");
  EXPECT_THAT(texts(folder.take(kStart)), ElementsAre());
  folder.add(kStart, 1, "a");
  EXPECT_THAT(texts(folder.take(kStart)), ElementsAre("a 012"));
  EXPECT_FALSE(folder.next_deadline());
}

TEST(LineFolder, TheOthersWaitForTheWindow) {
  LineFolder folder = folder_of(2);
  folder.add(kStart, 0, "a");
  folder.add(kStart + Duration(40), 1, "b");
  EXPECT_EQ(folder.next_deadline(), kStart + Duration(100));
  EXPECT_THAT(texts(folder.take(kStart + Duration(99))), ElementsAre());
  EXPECT_THAT(texts(folder.take(kStart + Duration(100))), ElementsAre("a 0"));
  EXPECT_EQ(folder.next_deadline(), kStart + Duration(140));
  EXPECT_THAT(texts(folder.take_all()), ElementsAre("b 1"));
}

TEST(LineFolder, EachWorkersLinesStayInOrder) {
  LineFolder folder = folder_of(2);
  for (const char* text : {"a", "b"}) folder.add(kStart, 0, text);
  for (const char* text : {"b", "a"}) folder.add(kStart, 1, text);
  EXPECT_THAT(texts(folder.take_all()), ElementsAre("a 0", "b 01", "a 1"));
}

TEST(LineFolder, EqualLinesOfOneWorkerAreTwo) {
  LineFolder folder = folder_of(2);
  for (int i = 0; i < 3; ++i) folder.add(kStart, 0, "a");
  for (int i = 0; i < 2; ++i) folder.add(kStart, 1, "a");
  EXPECT_THAT(texts(folder.take_all()), ElementsAre("a 01", "a 01", "a 0"));
}

TEST(LineFolder, ALineOfAllWaitsForThoseBeforeIt) {
  LineFolder folder = folder_of(2);
  folder.add(kStart, 0, "only 0");
  for (int member = 0; member < 2; ++member) folder.add(kStart, member, "a");
  EXPECT_THAT(texts(folder.take(kStart)), ElementsAre());
  EXPECT_THAT(texts(folder.take(kStart + Duration(100))), ElementsAre("only 0 0", "a 01"));
}

TEST(LineFolder, HoldsNoMoreThanItsLimit) {
  LineFolder folder(Duration(100), 10'000);
  folder.begin(2);
  std::size_t shown = 0;
  for (int i = 0; i < 1'000; ++i) {
    folder.add(kStart, 0, std::string(500, 'x') + std::to_string(i));
    shown += folder.take(kStart).size();
  }
  EXPECT_GE(shown, 1'000U - 20);
  EXPECT_EQ(shown + folder.take_all().size(), 1'000U);
}

// Whatever comes when: every worker's lines are there, each once and in order, and none stays
// longer than the window.
TEST(LineFolder, LosesNothingInRandomOrder) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr int kMembers = 5;
  LineFolder folder = folder_of(kMembers);
  std::map<int, std::vector<std::string>> written;
  std::map<int, std::vector<std::string>> shown;
  const auto show = [&shown](const std::vector<LineFolder::Line>& lines) {
    for (const LineFolder::Line& line : lines) {
      EXPECT_TRUE(std::is_sorted(line.members.begin(), line.members.end()));
      for (const int member : line.members) shown[member].push_back(line.text);
    }
  };
  TimePoint now = kStart;
  for (int i = 0; i < 20'000; ++i) {
    now += Duration(random() % 5);
    const int member = static_cast<int>(random() % kMembers);
    const std::string text = "line " + std::to_string(random() % 6);
    written[member].push_back(text);
    folder.add(now, member, text);
    show(folder.take(now));
    ASSERT_GT(folder.next_deadline().value_or(TimePoint::max()), now);
  }
  show(folder.take_all());
  EXPECT_EQ(shown, written);
}

}  // namespace
}  // namespace ddp::agent
