#include "agent/process/state_watch.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace ddp::agent {
namespace {

constexpr Duration kShortest{10};
constexpr Duration kLongest{100};

}  // namespace

bool is_uninterruptible(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  // The state follows the command, which may hold parentheses itself.
  const auto end = stat.rfind(") ");
  return end != std::string::npos && stat.compare(end, 3, ") D") == 0;
}

Duration StateWatch::period() const { return std::clamp(limit_ / 10, kShortest, kLongest); }

std::vector<pid_t> StateWatch::look(TimePoint now, const std::vector<pid_t>& pids) {
  std::map<pid_t, Seen> seen;
  std::vector<pid_t> over;
  for (const pid_t pid : pids) {
    if (!is_stuck_(pid)) continue;
    const auto before = seen_.find(pid);
    Seen& one = seen[pid] = before == seen_.end() ? Seen{now} : before->second;
    if (one.told || now - one.first < limit_) continue;
    one.told = true;
    over.push_back(pid);
  }
  seen_ = std::move(seen);
  return over;
}

}  // namespace ddp::agent
