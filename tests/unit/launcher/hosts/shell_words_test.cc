// How shells read words that were quoted for them.
#include "common/base/shell_words.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/hosts/syntax/launch_agent.h"
#include "tests/support/process.h"

namespace ddp::hosts {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Words = std::vector<std::string>;

// The arguments as a real shell gives them to a program.
Words through_shell(const Words& words) {
  Words command{"printf", "%s\\0"};
  command.insert(command.end(), words.begin(), words.end());
  const test::Finished done = test::run({"sh", "-c", shell_quote(command)});
  EXPECT_EQ(done.status, 0) << done.err;
  Words read;
  for (std::size_t at = 0; at < done.out.size();) {
    const std::size_t end = done.out.find('\0', at);
    read.push_back(done.out.substr(at, end - at));
    at = end + 1;
  }
  return read;
}

TEST(ShellQuote, AShellReadsWhatWasMeant) {
  const Words words{"",      "plain", "two words", "it's",  "\"double\"", "$HOME",    "`id`",
                    "$(id)", "a\nb",  "\\",        "\\\\n", "*",          "~",        "#",
                    "a;b",   "a&&b",  "<x>",       "!x",    "tab\there",  "-n",       "--a=b",
                    "'",     "''",    "\"",        "%s",    "\xC3\xA4",   "\xFF\x01", "A=b",
                    "{a,b}", "[x]",   "?",         " lead", "trail ",     "\r\n"};
  EXPECT_EQ(through_shell(words), words);
}

TEST(ShellQuote, AnyBytes) {
  constexpr unsigned kSeed = 20'261'122;
  std::mt19937 dice(kSeed);
  for (int round = 0; round < 20; ++round) {
    Words words;
    for (int i = 0; i < 20; ++i) {
      std::string word;
      for (auto length = dice() % 30; length > 0; --length) {
        word += static_cast<char>(1 + dice() % 255);
      }
      words.push_back(word);
    }
    ASSERT_EQ(through_shell(words), words) << "seed " << kSeed << ", round " << round;
  }
}

TEST(ShellQuote, IsReadable) {
  EXPECT_EQ(shell_quote("/opt/ddp/bin/ddp-run"), "/opt/ddp/bin/ddp-run");
  EXPECT_EQ(shell_quote(Words{"ddp-run", "--nnodes=2:4", "a b"}), "ddp-run --nnodes=2:4 'a b'");
  EXPECT_EQ(shell_quote(Words{"A=b", "A=b"}), "'A=b' A=b") << "in front it would be an assignment";
}

TEST(SplitWords, QuotesAndBackslashes) {
  EXPECT_THAT(split_words("kubectl exec -i  {host}\t--").value(),
              ElementsAre("kubectl", "exec", "-i", "{host}", "--"));
  EXPECT_THAT(split_words(R"(a 'b c' "d 'e" f\ g '' "h\"i" "\n")").value(),
              ElementsAre("a", "b c", "d 'e", "f g", "", "h\"i", "\\n"));
  EXPECT_THAT(split_words("  ").value(), ElementsAre());
  EXPECT_THAT(split_words("a 'b").error().message, HasSubstr("' is not closed"));
}

TEST(SplitWords, UndoesQuoting) {
  const Words words{"a b", "it's", "", "x\ny", "\"", "\\"};
  EXPECT_EQ(split_words(shell_quote(words)).value(), words);
}

TEST(LaunchAgent, Commands) {
  const Words program{"/opt/my ddp/ddp-run", "--flag"};
  const Words by_ssh = LaunchAgent().command("u@a", program);
  EXPECT_EQ(by_ssh.front(), "ssh");
  EXPECT_THAT(by_ssh, testing::Contains("BatchMode=yes"));
  EXPECT_EQ(by_ssh[by_ssh.size() - 2], "u@a");
  EXPECT_EQ(by_ssh.back(), "'/opt/my ddp/ddp-run' --flag") << "for the shell there";
  EXPECT_EQ(LaunchAgent().name(), "ssh");

  const struct {
    const char* text;
    Words command;
  } cases[] = {
      {"kubectl exec -i {host} --",
       {"kubectl", "exec", "-i", "a", "--", "/opt/my ddp/ddp-run", "--flag"}},
      {"docker exec -i", {"docker", "exec", "-i", "a", "/opt/my ddp/ddp-run", "--flag"}},
      {"run --at=node-{host} {host}", {"run", "--at=node-a", "a", "/opt/my ddp/ddp-run", "--flag"}},
      {"/usr/bin/ssh -p 2222", {"/usr/bin/ssh", "-p", "2222", "a", "'/opt/my ddp/ddp-run' --flag"}},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(LaunchAgent::parse(one.text).value().command("a", program), one.command) << one.text;
  }
  EXPECT_EQ(LaunchAgent::parse("/usr/bin/kubectl exec").value().name(), "kubectl");
  EXPECT_TRUE(LaunchAgent::parse("").value().is_default());
  EXPECT_FALSE(LaunchAgent::parse("  "));
  EXPECT_FALSE(LaunchAgent::parse("a 'b"));
}

TEST(LaunchAgent, AHostsNameIsNotReadAgain) {
  EXPECT_THAT(LaunchAgent::parse("x {host}").value().command("{host}", {"p"}),
              ElementsAre("x", "{host}", "p"));
}

}  // namespace
}  // namespace ddp::hosts
