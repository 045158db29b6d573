// What ddp-run top shows.
#include "launcher/status/top_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launcher/page/page_document.h"
#include "launcher/status/sparkline.h"

namespace ddp::status {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

json job() {
  const json status = json::parse(R"json([{
    "job_id": "j", "program": "train.py", "state": "running", "round": 1, "world_size": 4, "restarts": 1,
    "max_restarts": 3, "failures": 1,
    "first_failure": {"round": 0, "text": "rank 2 on b failed: signal 9 (SIGKILL)"},
    "late": [{"rank": 3, "computes_ms": 20.5, "others_ms": 10.25}],
    "nodes": [
      {"node_id": "n0", "host": "a", "address": "10.0.0.1", "state": "in_round", "step": 90, "group_rank": 0,
       "ranks": [0, 1], "total_steps": 200, "eta_seconds": 61.5, "steps_per_second": 10,
       "waits": ["rank 0 has waited 2.0 s in all_reduce #4"]},
      {"node_id": "n1", "host": "b", "address": "10.0.0.2", "state": "in_round", "step": 40, "group_rank": 1,
       "ranks": [2, 3], "steps_per_second": 10},
      {"node_id": "n2", "host": "c", "address": "10.0.0.3", "state": "lost", "step": -1}]
}])json");
  const json history = json::parse(R"json([{
    "job_id": "j", "elapsed_ms": 8000, "forgotten_rounds": 0,
    "rounds": [
      {"round": 0, "world_size": 4, "began_ms": 0, "first_step_ms": 900, "steps": [0, 50], "ended_ms": 4000,
       "end": "rank 2 on b failed"},
      {"round": 1, "world_size": 4, "began_ms": 4200, "first_step_ms": 4500, "steps": [45, 90]}],
    "checkpoints": [{"round": 1, "step": 60, "bytes": 2048, "seconds": 0.25, "written_ms": 6000, "published": true}],
    "curves": {"loss": {"interval_ms": 1000, "points": [[0, 4, 3, 5], [3, 2, 2, 2], [7, 1, 1, 1]]}}}])json");
  return page::page_document(status, history).at("jobs").at("j");
}

std::vector<std::string> texts(const std::vector<Line>& lines) {
  std::vector<std::string> all;
  for (const Line& line : lines) {
    std::string text;
    for (const Span& span : line) text += span.text;
    all.push_back(text);
  }
  return all;
}

TEST(TopScreen, HasEverythingThatThePageHas) {
  const auto lines = texts(top_screen(job(), {.width = 120}));
  EXPECT_THAT(lines.at(0), HasSubstr("j  train.py   running "));
  EXPECT_THAT(lines.at(1),
              HasSubstr("0:08 elapsed · round 1 · 4 workers · 2 of 3 restarts left · 1 failure · "
                        "step 90 of 200 · 1:02 left"));
  for (const char* part :
       {"first failure of round 0: rank 2 on b failed: signal 9 (SIGKILL)", "1 (1 to 5)",
        "rank 0 on a (10.0.0.1), in round, step 90", "a: rank 0 has waited 2.0 s in all_reduce #4",
        "  1 after 0:05, 4 workers, steps 45 to 90: runs",
        "  0 after 0:00, 4 workers, steps 0 to 50: rank 2 on b failed (cost 500 ms)",
        "  step 60: 2.0 KiB in 250 ms"}) {
    EXPECT_THAT(lines, Contains(HasSubstr(part))) << part;
  }
}

TEST(TopScreen, ShowsHowEachRankIs) {
  const auto lines = top_screen(job(), {.width = 80, .marked = 3});
  const auto grid =
      std::find_if(lines.begin(), lines.end(), [](const Line& line) { return line.size() == 5; });
  ASSERT_NE(grid, lines.end());
  std::vector<Style> styles;
  for (const Span& span : *grid) styles.push_back(span.style);
  EXPECT_THAT(styles, testing::ElementsAre(Style::kGood, Style::kGood, Style::kBehind, Style::kLate,
                                           Style::kBad));
  EXPECT_TRUE(grid->at(3).marked);
  EXPECT_THAT(texts({*grid}).at(0), HasSubstr("▽2    ▲3    ✕- "));
  const auto plain = texts(top_screen(job(), {.width = 80, .marked = 3, .blocks = false}));
  EXPECT_THAT(plain, Contains(HasSubstr("v2    ^3    x- ")));
  EXPECT_THAT(plain, Contains(HasSubstr("late: computes 20.5 ms a step, the")));
}

TEST(TopScreen, NoLineIsLongerThanTheTerminal) {
  for (const int width : {20, 79, 199}) {
    for (const std::string& line : texts(top_screen(job(), {.width = width}))) {
      EXPECT_LE(columns_of(line), width) << line;
    }
  }
}

std::vector<std::string> wrapped_text(const std::string& text, int columns) {
  std::vector<std::string> lines;
  for (const Line& line : wrapped(text, columns)) lines.push_back(line.at(0).text);
  return lines;
}

TEST(TopScreen, ALongLineOfARankGoesOnInTheNext) {
  EXPECT_THAT(wrapped_text("", 10), IsEmpty());
  EXPECT_THAT(wrapped_text("a\n\nb\n", 10), ElementsAre("a", "", "b"));
  EXPECT_THAT(wrapped_text("0123456789", 10), ElementsAre("0123456789"));
  EXPECT_THAT(wrapped_text("0123456789a", 10), ElementsAre("0123456789", "a"));
  EXPECT_THAT(wrapped_text("loss is still falling", 10),
              ElementsAre("loss is", "still", "falling"));
  EXPECT_THAT(wrapped_text("01234567 9 ab", 10), ElementsAre("01234567 9", "ab"));
  EXPECT_THAT(wrapped_text("a 234567890", 10), ElementsAre("a 23456789", "0"));
  EXPECT_THAT(wrapped_text("äöüäöüä", 3), ElementsAre("äöü", "äöü", "ä"));
  EXPECT_THAT(wrapped_text("x\x1b[2J", 80), ElementsAre("x [2J"));
}

TEST(TopScreen, TextOfOthersCommandsNoTerminal) {
  json hostile = job();
  hostile["program"] = "\x1b[2Jrm";
  hostile["nodes"]["n0"]["waits"] = {"\x1b]0;x\x07",
                                     "\xC2\x9B"
                                     "2J"};
  for (const std::string& line : texts(top_screen(hostile, {}))) {
    EXPECT_EQ(line.find_first_of("\x1b\x07"), std::string::npos) << line;
    EXPECT_EQ(line.find("\xC2\x9B"), std::string::npos) << line;
  }
}

TEST(TopScreen, SaysThatTheLossIsNoNumber) {
  json diverged = job();
  diverged["nodes"]["n0"]["loss_is"] = "NaN";
  const auto lines = top_screen(diverged, {.width = 160});
  ASSERT_EQ(lines.at(2).size(), 1u);
  EXPECT_EQ(lines.at(2).at(0).text, "the loss is NaN");
  EXPECT_EQ(lines.at(2).at(0).style, Style::kBad);
}

TEST(TopScreen, SaysThatACurveHasEnded) {
  json ended = job();
  EXPECT_THAT(texts(top_screen(ended, {.width = 120})), Contains(HasSubstr(" 1 (1 to 5)")));
  EXPECT_THAT(texts(top_screen(ended, {.width = 120})), Not(Contains(HasSubstr("last 1"))));
  ended["elapsed_ms"] = 20'000;
  EXPECT_THAT(texts(top_screen(ended, {.width = 120})), Contains(HasSubstr(" last 1 (1 to 5)")));
}

TEST(Sparklines, CoverTheWholeTime) {
  const json curve = job().at("curves").at("loss");
  EXPECT_EQ(sparkline(curve, 8'000, 8, true), "█  ▃   ▁");
  EXPECT_EQ(sparkline(curve, 8'000, 8, false), "#  ,   _");
  EXPECT_EQ(sparkline(curve, 16'000, 8, false), "#, _    ");
  EXPECT_EQ(columns_of(sparkline(curve, 8'000, 30, true)), 30);
  const CurveRange range = range_of(curve, 8'000);
  EXPECT_EQ(range.last, 1);
  EXPECT_TRUE(range.is_now);
  EXPECT_FALSE(range_of(curve, 20'000).is_now);
  EXPECT_EQ(range.least, 1);
  EXPECT_EQ(range.most, 5);
}

}  // namespace
}  // namespace ddp::status
