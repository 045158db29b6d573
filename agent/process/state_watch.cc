#include "agent/process/state_watch.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace ddp::agent {
namespace {

constexpr Duration kShortest{10};
constexpr Duration kLongest{100};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// '?' if there is no such process or thread.
char state_of(const std::string& folder) {
  const std::string stat = text_of(folder + "/stat");
  // The state follows the command, which may hold parentheses itself.
  const auto end = stat.rfind(") ");
  return end != std::string::npos && end + 2 < stat.size() ? stat[end + 2] : '?';
}

// "[<0>] fuse_wait_answer+0x1/0x2" and so on, to "fuse_wait_answer < ...".
std::string frames_of(const std::string& folder) {
  constexpr int kMostFrames = 6;
  std::istringstream lines(text_of(folder + "/stack"));
  std::string frames;
  std::string line;
  for (int i = 0; i < kMostFrames && std::getline(lines, line); ++i) {
    const auto name = line.find("] ");
    if (name == std::string::npos) break;
    frames += frames.empty() ? "" : " < ";
    frames += line.substr(name + 2, line.find('+') - name - 2);
  }
  return frames;
}

// The folder in /proc of the thread that the kernel holds.
std::string held_thread(pid_t pid) {
  const std::string process = fmt::format("/proc/{}", pid);
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator(process + "/task", gone)) {
    if (state_of(thread.path()) == 'D') return thread.path();
  }
  return process;
}

}  // namespace

bool is_uninterruptible(pid_t pid) { return state_of(fmt::format("/proc/{}", pid)) == 'D'; }

bool is_alive(pid_t pid) {
  const char state = state_of(fmt::format("/proc/{}", pid));
  return state != '?' && state != 'Z' && state != 'X';
}

std::string state_text(pid_t pid) {
  const std::string folder = held_thread(pid);
  const char state = state_of(folder);
  if (state == '?') return "";
  std::string text = fmt::format("; it is in state {}", state);
  const std::string wchan = text_of(folder + "/wchan");
  if (!wchan.empty() && wchan != "0") text += " in " + wchan;
  if (const std::string frames = frames_of(folder); !frames.empty()) text += " (" + frames + ")";
  return text;
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
