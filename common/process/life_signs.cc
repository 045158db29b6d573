#include "common/process/life_signs.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

namespace ddp {
namespace {

std::string read_proc(pid_t pid, const char* file) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/" + file);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  return text.str();
}

// All counters in one text, because it does not matter which has changed. Empty: the process is
// gone.
std::string all_counters(pid_t pid) {
  const std::string stat = read_proc(pid, "stat");
  // The command may hold spaces and parentheses itself; the last one closes it.
  std::istringstream fields(stat.substr(std::min(stat.rfind(')'), stat.size())));
  std::string field;
  std::string counters;
  for (int number = 2; fields >> field; ++number) {
    if (number == 14 || number == 15) counters += field + ' ';  // Time in user mode and the kernel.
  }
  counters += read_proc(pid, "io");
  std::istringstream status(read_proc(pid, "status"));
  for (std::string line; std::getline(status, line);) {
    if (line.find("ctxt_switches") != std::string::npos) counters += line;
  }
  return counters;
}

int looks_within(Duration limit, Duration look) {
  return static_cast<int>(std::max<Duration::rep>(1, (limit + look - Duration(1)) / look));
}

}  // namespace

LifeSigns::LifeSigns(pid_t pid, Duration limit, Duration look)
    : pid_(pid), looks_(looks_within(limit, look)), looks_left_(looks_) {}

bool LifeSigns::check() {
  std::string now = all_counters(pid_);
  if (now.empty() || now != last_) {
    last_ = std::move(now);
    looks_left_ = looks_;
    return true;
  }
  return --looks_left_ > 0;
}

}  // namespace ddp
