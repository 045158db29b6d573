#include "launcher/hosts/syntax/launch_agent.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "common/base/shell_words.h"

namespace ddp::hosts {
namespace {

constexpr std::string_view kPlaceholder = "{host}";

// Options: never ask for a password, since nobody could answer; no terminal, since it would turn
// line ends into \r\n; and notice a vanished peer after a minute.
std::vector<std::string> ssh_words() {
  return {"ssh",   "-x",
          "-a",    "-T",
          "-o",    "BatchMode=yes",
          "-o",    "ConnectTimeout=30",
          "-o",    "ServerAliveInterval=15",
          "-o",    "ServerAliveCountMax=4",
          "{host}"};
}

std::string base_name(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));  // npos + 1 is 0.
}

bool uses_remote_shell(std::string_view program) {
  constexpr std::array<std::string_view, 4> kRemoteShells{"ssh", "rsh", "remsh", "slogin"};
  const std::string name = base_name(program);
  return std::find(kRemoteShells.begin(), kRemoteShells.end(), name) != kRemoteShells.end();
}

}  // namespace

Result<LaunchAgent> LaunchAgent::parse(const std::string& text) {
  LaunchAgent agent;
  if (text.empty()) return agent;
  auto words = split_words(text);
  if (!words) return words.error();
  if (words->empty() || words->front().empty()) {
    return make_error(Errc::kInvalidArgument,
                      "the command is empty; write for example \"kubectl exec -i {} --\"",
                      kPlaceholder);
  }
  if (std::none_of(words->begin(), words->end(), [](const std::string& word) {
        return word.find(kPlaceholder) != std::string::npos;
      })) {
    words->emplace_back(kPlaceholder);
  }
  agent.text_ = text;
  agent.words_ = std::move(*words);
  return agent;
}

std::vector<std::string> LaunchAgent::command(const std::string& host,
                                              const std::vector<std::string>& program) const {
  std::vector<std::string> argv = is_default() ? ssh_words() : words_;
  for (std::string& word : argv) {
    for (std::size_t at = word.find(kPlaceholder); at != std::string::npos;
         at = word.find(kPlaceholder, at + host.size())) {
      word.replace(at, kPlaceholder.size(), host);
    }
  }
  if (uses_remote_shell(argv.front())) {
    argv.push_back(shell_quote(program));
  } else {
    argv.insert(argv.end(), program.begin(), program.end());
  }
  return argv;
}

std::string LaunchAgent::name() const { return is_default() ? "ssh" : base_name(words_.front()); }

}  // namespace ddp::hosts
