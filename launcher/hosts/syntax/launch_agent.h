#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"

namespace ddp::hosts {

// What starts a program on another machine: ssh, or the command of --launch-agent. Either connects
// the program's standard input and output with its own, and ends when the program ends. Pure.
class LaunchAgent {
 public:
  LaunchAgent() = default;  // The system's ssh.
  // A command in which {host} stands for the host's name. Without {host}, the name is appended.
  // Empty: ssh. kInvalidArgument if the text is not a command.
  static Result<LaunchAgent> parse(const std::string& text);

  // argv that runs `program` (also an argv) on the host. ssh and rsh pass it to a shell there, so
  // for them it is quoted. Other commands get it word by word.
  std::vector<std::string> command(const std::string& host,
                                   const std::vector<std::string>& program) const;
  // The text as given to parse(); empty for ssh.
  const std::string& text() const { return text_; }
  // The program's name, for messages: "ssh", "kubectl".
  std::string name() const;
  bool is_default() const { return words_.empty(); }

  bool operator==(const LaunchAgent&) const = default;

 private:
  std::string text_;
  std::vector<std::string> words_;
};

}  // namespace ddp::hosts
