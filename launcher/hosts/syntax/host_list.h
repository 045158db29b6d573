#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

// The machines of a job as people name them: --hosts a,b:4 and --hostfile FILE. Pure, except for
// read_hostfile().
namespace ddp::hosts {

struct Host {
  std::string name;  // As the launch agent takes it: HOST, USER@HOST, a numeric address, a pod.
  int slots = 0;     // Workers there; 0: not given.

  bool operator==(const Host&) const = default;
};

// HOST[:SLOTS],... An IPv6 address must be in brackets, with or without slots. The brackets are not
// part of the name. Each host may be named once.
Result<std::vector<Host>> parse_host_list(std::string_view text);

// One host a line: HOST, HOST:SLOTS or HOST slots=N; # begins a comment. Errors name the line.
Result<std::vector<Host>> parse_hostfile(std::string_view text);
// Parses a file. Its name is in front of the error; kIo or kNotFound if it cannot be read.
Result<std::vector<Host>> read_hostfile(const std::string& path);

// Both lists together. kExists, with the host's name, if a host is in both.
Result<std::vector<Host>> joined(std::vector<Host> first, const std::vector<Host>& more);

}  // namespace ddp::hosts
