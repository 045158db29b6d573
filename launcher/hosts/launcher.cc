#include "launcher/hosts/launcher.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include <asio/post.hpp>
#include <fmt/format.h>

#include "common/base/host_name.h"
#include "common/base/random_hex.h"
#include "common/base/shell_words.h"
#include "common/base/signal_name.h"
#include "common/wire/frame.h"
#include "launcher/machine/machine.h"

namespace ddp::hosts {
namespace {

// How many lines are kept of what a connection prints before ddp-run reports. They are the reason
// if the connection ends.
constexpr std::size_t kSaidLinesMax = 20;
// The shell's exit status for a program that does not exist.
constexpr int kShellNotFound = 127;
constexpr int kShellNotExecutable = 126;
constexpr int kSshFailed = 255;

// Whether this host is started as a child, without a launch agent.
bool starts_here(const std::string& host, const LaunchAgent& agent) {
  return agent.is_default() &&
         (host == "localhost" || machine::is_own_name(host, ddp::host_name()));
}

std::vector<std::string> own_command(const std::string& program) {
  return {program, std::string(kStartedFlag)};
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace

// Random, so that workers cannot print it, neither by accident nor on purpose.
std::string make_mark() { return "\001ddp-run " + random_hex(16) + ' '; }

std::vector<std::string> launch_commands(const std::vector<NodePlace>& places,
                                         const LaunchAgent& agent, const std::string& program) {
  std::vector<std::string> lines;
  for (const NodePlace& place : places) {
    const auto argv = starts_here(place.host, agent)
                          ? own_command(program)
                          : agent.command(place.host, own_command(program));
    lines.push_back(shell_quote(argv));
  }
  return lines;
}

Launcher::Launcher(asio::io_context& io, NodeOrder order, LaunchAgent agent, Events events)
    : io_(io), order_(std::move(order)), agent_(std::move(agent)), events_(std::move(events)) {}

void Launcher::start(bool first_is_here) {
  std::vector<NodePlace> places = order_.places;
  if (first_is_here) {
    start_group({places.front()}, true);
    places.erase(places.begin());
  } else {
    // Names of this machine would mean another one on a host that starts a share.
    const auto here = std::stable_partition(places.begin(), places.end(), [this](const auto& one) {
      return !starts_here(one.host, agent_);
    });
    for (auto place = here; place != places.end(); ++place) start_group({*place}, true);
    places.erase(here, places.end());
  }
  for (auto& group : split_for_launch(places)) start_group(std::move(group), false);
  check_all_ended();
}

void Launcher::start_group(std::vector<NodePlace> group, bool here) {
  const std::string host = group.front().host;
  const ChildPlace child = children_.emplace(children_.end(), io_);
  child->group = std::move(group);
  child->agent = here ? "ddp-run" : agent_.name();
  for (const NodePlace& place : child->group) child->open.insert(place.host);
  const auto argv =
      here ? own_command(order_.program) : agent_.command(host, own_command(order_.program));
  auto process = HostProcess::start(
      io_, argv,
      {.on_bytes = [this, child](Stream stream,
                                 std::string_view bytes) { on_bytes(child, stream, bytes); },
       .on_end = [this, child](int status) { on_end(child, status); }});
  if (!process) {
    // If the launch agent is missing, no other host can be started either. The child is removed
    // first, because the callbacks may look at the list.
    const std::vector<NodePlace> places = std::move(child->group);
    children_.erase(child);
    for (const NodePlace& place : places) {
      tell(NodeReport::Kind::kUnreachable, place.host, process.error().message);
    }
    return;
  }
  child->process = std::move(*process);
  if (paused_) child->process->pause_reading();
  NodeOrder order = order_;
  order.places = child->group;
  child->process->send(wire::encode_frame(encode(order)));
  child->limit.after(Duration(order_.start_limit_ms), [child, this] {
    child->given_up = fmt::format("ddp-run did not start there within {} s (--join-timeout)",
                                  order_.start_limit_ms / 1'000);
    child->process->kill(SIGKILL);
  });
}

void Launcher::on_bytes(ChildPlace child, Stream stream, std::string_view bytes) {
  LineAssembler& lines = stream == Stream::kOutput ? child->output : child->error;
  lines.feed(bytes, [&](std::string_view line) { on_line(child, stream, line); });
}

void Launcher::on_line(ChildPlace child, Stream stream, std::string_view line) {
  if (stream == Stream::kError && !child->reached) {
    child->said.emplace_back(line);
    if (child->said.size() > kSaidLinesMax) child->said.pop_front();
    return;
  }
  // A report may follow output without a newline on the same line, for example from a login script.
  const std::size_t at = stream == Stream::kOutput ? line.find(order_.mark) : line.npos;
  if (at == line.npos) return events_.on_line(stream, line);
  if (at > 0) events_.on_line(stream, std::string(line.substr(0, at)) + "\n");
  take_report(child, line.substr(at));
}

void Launcher::take_report(ChildPlace child, std::string_view line) {
  const auto report = decode_line(order_.mark, line);
  if (!report) return;
  if (!std::exchange(child->reached, true)) {
    child->limit.cancel();
    for (const std::string& said : std::exchange(child->said, {})) {
      events_.on_line(Stream::kError, said);
    }
  }
  if (report->kind != NodeReport::Kind::kReached) child->open.erase(report->host);
  const auto place = std::find_if(child->group.begin(), child->group.end(),
                                  [&](const auto& one) { return one.host == report->host; });
  if (report->kind != NodeReport::Kind::kUnreachable || place == child->group.end() || stopping_) {
    return events_.on_report(*report);
  }
  // This host may reach it where the other host could not, because its keys differ.
  start_group({*place}, false);
}

void Launcher::on_end(ChildPlace child, int status) {
  child->output.finish([&](std::string_view line) { on_line(child, Stream::kOutput, line); });
  child->error.finish([&](std::string_view line) { on_line(child, Stream::kError, line); });
  const std::string why = why_ended(*child, status);
  if (child->reached) {
    for (const std::string& host : child->open) tell(NodeReport::Kind::kLost, host, why);
    children_.erase(child);
    return check_all_ended();
  }
  std::vector<NodePlace> rest(child->group.begin() + 1, child->group.end());
  tell(NodeReport::Kind::kUnreachable, child->group.front().host, why);
  children_.erase(child);
  // The next host takes the first one's place in the group.
  if (!rest.empty() && !stopping_) {
    start_group(std::move(rest), false);
  } else {
    for (const NodePlace& place : rest) {
      tell(NodeReport::Kind::kLost, place.host,
           "it was no longer started because the job had ended");
    }
  }
  check_all_ended();
}

std::string Launcher::why_ended(const Child& child, int status) const {
  std::string why = child.given_up;
  if (why.empty() && WIFSIGNALED(status)) {
    why = fmt::format("{} was ended by signal {} ({})", child.agent, WTERMSIG(status),
                      signal_name(WTERMSIG(status)));
  } else if (why.empty()) {
    why = fmt::format("{} ended with status {}", child.agent, WEXITSTATUS(status));
  }
  std::string said;
  for (const std::string& line : child.said) {
    said += (said.empty() ? "" : "; ") + first_line(line);
  }
  if (!said.empty()) why += ": " + said;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  if (!child.reached && (code == kShellNotFound || code == kShellNotExecutable)) {
    why += fmt::format("; ddp-run has to be at {} on every host", order_.program);
  }
  if (!child.reached && code == kSshFailed && child.agent == "ssh") {
    why += fmt::format("; `ssh {} true` must work without a password and without a question",
                       child.group.front().host);
  }
  return why;
}

void Launcher::tell(NodeReport::Kind kind, const std::string& host, const std::string& why) {
  NodeReport report;
  report.kind = kind;
  report.host = host;
  report.summary = why;
  events_.on_report(report);
}

void Launcher::check_all_ended() {
  if (!children_.empty() || std::exchange(end_told_, true)) return;
  asio::post(io_, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) events_.on_all_ended();
  });
}

void Launcher::signal(int signal) {
  const bool ends = signal != order_.checkpoint_signal;
  stopping_ = stopping_ || ends;
  for (Child& child : children_) {
    if (child.reached) {
      child.process->send(wire::encode_frame(encode_signal(signal)));
    } else if (ends) {
      child.given_up = "the launcher did not wait for it";
      child.process->kill(SIGTERM);
    }
  }
}

void Launcher::hang_up() {
  stopping_ = true;
  for (Child& child : children_) child.process->close_input();
}

void Launcher::kill() {
  stopping_ = true;
  for (Child& child : children_) child.process->kill(SIGKILL);
}

void Launcher::pause_reading() {
  paused_ = true;
  for (Child& child : children_) child.process->pause_reading();
}

void Launcher::resume_reading() {
  paused_ = false;
  // A copy, because a signal may end a process and change the list.
  std::vector<std::shared_ptr<HostProcess>> processes;
  for (Child& child : children_) processes.push_back(child.process);
  for (const auto& process : processes) process->resume_reading();
}

std::vector<std::string> Launcher::open_hosts() const {
  std::vector<std::string> hosts;
  for (const Child& child : children_)
    hosts.insert(hosts.end(), child.open.begin(), child.open.end());
  return hosts;
}

}  // namespace ddp::hosts
