// Every flag of the table in every spelling: dashes, underscores, its shortest prefix, PET_NAME;
// and the errors for a missing and for a wrong value.
#include <algorithm>
#include <cctype>
#include <set>

#include "launcher/flags/flag_table.h"
#include "tests/unit/launcher/ddp_run_flag_rows.h"

namespace ddp::flags {
namespace {

const Flag& flag_of(const FlagRow& row) {
  for (const Flag& flag : all_flags()) {
    if (flag.name == row.name) return flag;
  }
  throw std::runtime_error("no flag " + row.name);
}

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string variable(const std::string& name) {
  std::string text = "PET_" + underscored(name);
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

Arguments line_with(const FlagRow& row, const Arguments& flag) {
  Arguments arguments = row.others;
  arguments.insert(arguments.end(), flag.begin(), flag.end());
  arguments.push_back("prog");
  return arguments;
}

// What the flags mean, without the spelling they were given in.
Options meaning(const Arguments& arguments, const Environment& environment = {}) {
  Options options = options_of(arguments, environment);
  options.endpoint_flag.clear();
  options.devices_flag.clear();
  return options;
}

class EveryFlag : public testing::TestWithParam<FlagRow> {
 protected:
  const FlagRow& row() const { return GetParam(); }
  // The flag with a value, spelled like this.
  Arguments spelled(const std::string& name) const {
    if (!flag_of(row()).takes_value()) return {"--" + name};
    return {"--" + name, row().value};
  }
  Options expected() const { return meaning(line_with(row(), spelled(row().name))); }
};

TEST(FlagRows, EveryFlagHasOne) {
  std::set<std::string> rows;
  for (const FlagRow& row : kFlagRows) EXPECT_TRUE(rows.insert(row.name).second) << row.name;
  std::set<std::string> flags;
  for (const Flag& flag : all_flags()) flags.emplace(flag.name);
  EXPECT_EQ(rows, flags) << "kFlagRows in ddp_run_flag_rows.h has a row for each flag";
}

TEST_P(EveryFlag, ChangesSomething) {
  if (row().incomplete) {
    EXPECT_FALSE(parse(line_with(row(), {})));
    return;
  }
  EXPECT_EQ(expected() == meaning(line_with(row(), {})), row().no_effect);
}

TEST_P(EveryFlag, IsTheSameWithUnderscoresAndShortened) {
  EXPECT_EQ(meaning(line_with(row(), spelled(underscored(row().name)))), expected());
  EXPECT_EQ(meaning(line_with(row(), spelled(row().prefix))), expected());
  if (flag_of(row()).takes_value()) {
    const std::string joined = "--" + underscored(row().name) + "=" + row().value;
    EXPECT_EQ(meaning(line_with(row(), {joined})), expected());
  }
  if (const char letter = flag_of(row()).letter; letter != 0) {
    Arguments flag = spelled(row().name);
    flag.front() = {'-', letter};
    EXPECT_EQ(meaning(line_with(row(), flag)), expected());
  }
}

TEST_P(EveryFlag, HasAVariable) {
  const Flag& flag = flag_of(row());
  const Options without = row().incomplete ? Options{} : meaning(line_with(row(), {}));
  const std::string value = flag.takes_value() ? row().value : "1";
  const Options with = meaning(line_with(row(), {}), {{variable(row().name), value}});
  EXPECT_EQ(with, flag.of_line_only() ? without : expected());
  if (flag.takes_value() || flag.of_line_only()) return;
  EXPECT_EQ(meaning(line_with(row(), {}), {{variable(row().name), "0"}}), without);
  const auto wrong = parse(line_with(row(), {}), {{variable(row().name), "yes"}});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message, variable(row().name) + "=yes: neither 0 nor 1");
  EXPECT_EQ(exit_code_of(wrong.error()), 64);
}

TEST_P(EveryFlag, CountsEachTimeIfItAddsUp) {
  if (!flag_of(row()).adds_up) return;
  Arguments twice = spelled(row().name);
  twice.insert(twice.end(), {"--" + row().name, "SECOND"});
  EXPECT_NE(meaning(line_with(row(), twice), {{"SECOND", "set"}}), expected());
}

TEST_P(EveryFlag, MissesItsValue) {
  const Flag& flag = flag_of(row());
  if (!flag.takes_value()) {
    const auto extra = parse({"--" + row().name + "=1", "prog"});
    ASSERT_FALSE(extra);
    EXPECT_EQ(extra.error().message,
              "--" + row().name + ": takes no value; leave out what follows the =");
    EXPECT_EQ(exit_code_of(extra.error()), 2);
    return;
  }
  const std::string name = "--" + row().name;
  const std::string message =
      name + ": the value is missing; write " + name + " " + std::string(flag.placeholder);
  for (const Arguments& arguments : {Arguments{name}, Arguments{name, "--standalone", "prog"}}) {
    const auto options = parse(arguments);
    ASSERT_FALSE(options);
    EXPECT_EQ(options.error().message, message);
    EXPECT_EQ(exit_code_of(options.error()), 2);
  }
}

// --name=, --name "", --na_me= and PET_NAME=.
TEST_P(EveryFlag, MayBeEmptyWhereTorchrunTakesThat) {
  const Flag& flag = flag_of(row());
  if (!flag.takes_value()) return;
  const std::string name = "--" + row().name;
  const std::string missing =
      ": the value is missing; write " + name + " " + std::string(flag.placeholder);
  const std::string variable_missing = variable(row().name) + "=: the value is missing; write " +
                                       variable(row().name) + "=" + std::string(flag.placeholder);
  const std::vector<Arguments> spellings{
      {name, ""}, {name + "="}, {"--" + underscored(row().name) + "="}};
  const Environment empty{{variable(row().name), ""}};
  if (!kEmptyIsDefault.contains(row().name) && !kEmptyIsItself.contains(row().name)) {
    for (const Arguments& spelling : spellings) {
      const auto options = parse(line_with(row(), spelling));
      ASSERT_FALSE(options);
      EXPECT_EQ(options.error().message, name + missing);
      EXPECT_EQ(exit_code_of(options.error()), 2);
    }
    if (flag.of_line_only()) return;
    const auto options = parse(line_with(row(), {}), empty);
    ASSERT_FALSE(options);
    EXPECT_EQ(options.error().message, variable_missing);
    EXPECT_EQ(exit_code_of(options.error()), 2);
    return;
  }
  const Options of_variable = meaning(line_with(row(), {}), empty);
  for (const Arguments& spelling : spellings) {
    // It wins over what the environment says, as any value on the line.
    EXPECT_EQ(meaning(line_with(row(), spelling), {{variable(row().name), row().value}}),
              of_variable);
  }
  EXPECT_EQ(of_variable == meaning(line_with(row(), {})), kEmptyIsDefault.contains(row().name));
}

TEST_P(EveryFlag, RefusesAWrongValue) {
  if (row().wrong.empty()) return;
  const auto options = parse(line_with(row(), {"--" + row().name, row().wrong}));
  ASSERT_FALSE(options);
  EXPECT_EQ(options.error().message, "--" + row().name + " " + row().wrong + ": " + row().message);
  EXPECT_EQ(exit_code_of(options.error()), 64);
  if (flag_of(row()).of_line_only()) return;
  const auto variables = parse(line_with(row(), {}), {{variable(row().name), row().wrong}});
  ASSERT_FALSE(variables);
  EXPECT_EQ(variables.error().message,
            variable(row().name) + "=" + row().wrong + ": " + row().message);
}

INSTANTIATE_TEST_SUITE_P(Flags, EveryFlag, testing::ValuesIn(kFlagRows),
                         [](const auto& row) { return underscored(row.param.name); });

}  // namespace
}  // namespace ddp::flags
