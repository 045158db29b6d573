// --config: what a file of flags may contain, and which source wins.
#include "launcher/flags/config_file.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/launcher/ddp_run_lines.h"

namespace ddp::flags {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ConfigFile : public testing::Test {
 protected:
  Arguments with(const std::string& json, Arguments arguments = {}) {
    arguments.insert(arguments.begin(), {"--config", folder_.write("job.json", json)});
    return arguments;
  }
  std::string refusal(const std::string& json) {
    CommandLine line;
    const auto filled = fill_from_config(line, "job.json", json);
    EXPECT_FALSE(filled) << json;
    if (filled) return "";
    EXPECT_EQ(exit_code_of(filled.error()), 64);
    return filled.error().message;
  }

  test::TempDir folder_;
};

TEST_F(ConfigFile, TheLineWinsOverTheEnvironmentAndThatOverTheFile) {
  const std::string json = R"({"max_restarts": 1, "standby": 1, "role": "file"})";
  const Environment environment{{"PET_MAX_RESTARTS", "2"}, {"PET_STANDBY", "2"}};
  const Options options = options_of(with(json, {"--max-restarts", "3", "a"}), environment);
  EXPECT_EQ(options.rules.max_restarts, 3);
  EXPECT_EQ(options.standby, 2);
  EXPECT_EQ(options.role, "file");
  EXPECT_EQ(options.log_dir, "");
  const std::string alone = R"({"standalone": true})";
  EXPECT_TRUE(options_of(with(alone, {"a"})).standalone);
  EXPECT_FALSE(options_of(with(alone, {"a"}), {{"PET_STANDALONE", "0"}}).standalone);
  EXPECT_EQ(options_of({"a"}, {{"PET_CONFIG", folder_.write("pet.json", json)}}).role, "file");
}

TEST_F(ConfigFile, ListsAndObjectsStandForWhatTheLineHas) {
  const Options options = options_of(with(
      R"({"devices": [2, "4"], "signals-to-handle": ["TERM"], "join_timeout": 1.5,
          "rdzv-conf": {"last_call_timeout": 2, "is_host": true}, /* none */ "nnodes": "1:1"})",
      {"a"}));
  EXPECT_THAT(options.devices, ElementsAre("2", "4"));
  EXPECT_THAT(options.signals, ElementsAre(SIGTERM));
  EXPECT_EQ(options.rules.join_timeout_ms, 1'500);
  EXPECT_EQ(options.rules.last_call_ms, 2'000);
  EXPECT_EQ(options.is_host, true);
}

TEST_F(ConfigFile, VariablesToPassOnAreATextAListOrAnObject) {
  using Exports = std::vector<std::pair<std::string, std::string>>;
  const auto exports = [this](const std::string& value) {
    return options_of(with(R"({"hosts": ["a", "b"], "export": )" + value + "}", {"a"}),
                      {{"HERE", "set"}})
        .exports;
  };
  EXPECT_EQ(exports(R"("A=1,2")"), (Exports{{"A", "1,2"}}));
  EXPECT_EQ(exports(R"(["A=1,2", "HERE"])"), (Exports{{"A", "1,2"}, {"HERE", "set"}}));
  EXPECT_EQ(exports(R"({"A": "1,2", "B": 3})"), (Exports{{"A", "1,2"}, {"B", "3"}}));
}

TEST_F(ConfigFile, TheProgramCanBeInIt) {
  const std::string json = R"({"program": "train", "arguments": ["--lr", 0.1, "x y"]})";
  const Options options = options_of(with(json));
  EXPECT_EQ(options.program, "train");
  EXPECT_THAT(options.arguments, ElementsAre("--lr", "0.1", "x y"));
  const Options other = options_of(with(json, {"other"}));
  EXPECT_EQ(other.program, "other");
  EXPECT_TRUE(other.arguments.empty());
}

TEST_F(ConfigFile, AWrongValueNamesTheFileAndTheKey) {
  const auto options = parse(with(R"({"max_restarts": -1})", {"a"}));
  ASSERT_FALSE(options);
  EXPECT_THAT(options.error().message,
              HasSubstr("job.json: max_restarts -1: not a whole number from 0 to 1000000"));
  EXPECT_EQ(exit_code_of(options.error()), 64);
}

TEST_F(ConfigFile, WhatItCannotMeanIsSaid) {
  EXPECT_EQ(refusal(R"({"nproc_per_nod": 2})"),
            "--config job.json: \"nproc_per_nod\": there is no such flag; nproc-per-node is the "
            "nearest, --help lists them all");
  EXPECT_EQ(refusal(R"({"qqqqqqqqqqqqqqq": 2})"),
            "--config job.json: \"qqqqqqqqqqqqqqq\": there is no such flag; --help lists them all");
  EXPECT_EQ(refusal(R"({"help": true})").find("--config job.json: \"help\": there is no such"), 0U);
  EXPECT_EQ(refusal(R"({"standalone": "yes"})"),
            "--config job.json: \"standalone\": write true or false, without quotes");
  EXPECT_EQ(refusal(R"({"nnodes": true})"),
            "--config job.json: \"nnodes\": the value is missing; write N|MIN:MAX as a text or a "
            "number");
  EXPECT_THAT(refusal(R"({"nnodes": null})"), HasSubstr("the value is missing"));
  EXPECT_THAT(refusal(R"({"devices": [[1]]})"), HasSubstr("the value is missing"));
  EXPECT_EQ(refusal(R"({"log-dir": "a", "log_dir": "b"})"),
            "--config job.json: \"log-dir\" is given twice; write it once");
  EXPECT_EQ(refusal(R"({"program": 3})"), "--config job.json: \"program\": write it as a text");
  EXPECT_EQ(refusal(R"({"arguments": []})"),
            "--config job.json: \"arguments\" without \"program\": name the program, too");
  EXPECT_THAT(refusal(R"({"program": "a", "arguments": "x"})"), HasSubstr("write a list"));
  EXPECT_THAT(refusal(R"({"program": "a", "arguments": [null]})"), HasSubstr("a text or a number"));
  EXPECT_EQ(refusal("[]"),
            "--config job.json: is not a JSON object; write for example {\"nnodes\": 2}");
  EXPECT_EQ(refusal("{").find("--config job.json: is not JSON: parse error at line 1"), 0U);
}

TEST_F(ConfigFile, AFileThatCannotBeReadIsSaid) {
  const auto missing = parse({"--config", "/nonexistent/x", "a"});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message,
            "--config /nonexistent/x: cannot be read: No such file or directory");
  EXPECT_EQ(exit_code_of(missing.error()), 64);
  const auto folder = parse({"--config", folder_.path(), "a"});
  ASSERT_FALSE(folder);
  EXPECT_THAT(folder.error().message, HasSubstr("cannot be read: Is a directory"));
  const auto large = parse({"--config", folder_.write("large", std::string(2 << 20, ' ')), "a"});
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message, HasSubstr("is larger than 1048576 bytes"));
}

}  // namespace
}  // namespace ddp::flags
