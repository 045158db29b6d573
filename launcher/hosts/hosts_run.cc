#include "launcher/hosts/hosts_run.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/base/signal_name.h"
#include "common/log/log.h"
#include "common/process/this_process.h"
#include "common/terminal/terminal.h"
#include "launcher/hosting/hosting.h"
#include "launcher/hosts/hosts_dry_run.h"
#include "launcher/node/error_above.h"
#include "launcher/rendezvous/report.h"

namespace ddp::hosts {
namespace {

using Stream = Launcher::Stream;

constexpr Duration kPatience{10'000};
constexpr Duration kWaitingNoticePeriod{5'000};

// The working directory as $PWD has it, if that is right: a path through a symbolic link may be the
// one that exists on all hosts.
std::string own_folder() {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::current_path(error);
  const char* shown = std::getenv("PWD");
  if (shown != nullptr && *shown == '/' && std::filesystem::equivalent(shown, real, error)) {
    return shown;
  }
  return real;
}

int refuse(const Error& error) {
  std::fprintf(stderr, "ddp-run: %s\n", error.message.c_str());
  return exit_code_of(error);
}

}  // namespace

HostsRun::HostsRun(asio::io_context& io, HostsPlan plan, LaunchAgent agent,
                   std::unique_ptr<server::Server> server)
    : io_(io),
      plan_(std::move(plan)),
      server_(std::move(server)),
      output_(writer(STDOUT_FILENO)),
      error_(terminal::same_stream(STDOUT_FILENO, STDERR_FILENO) ? output_ : writer(STDERR_FILENO)),
      launcher_(io, plan_.order, std::move(agent),
                {.on_report = [this](const NodeReport& report) { on_report(report); },
                 .on_line = [this](Stream stream, std::string_view line) { on_line(stream, line); },
                 .on_all_ended = [this] { io_.stop(); }}),
      trace_(
          plan_.job, [this](const std::string& text) { notice(text); },
          [this](const std::string& text) { say(text); }),
      page_file_(plan_.job),
      signals_(io),
      patience_(io),
      notice_(io),
      going_on_(io),
      open_(static_cast<int>(plan_.order.places.size())) {
  std::vector<int> wanted = plan_.job.spec.signals;
  if (plan_.job.spec.checkpoint_signal != 0) wanted.push_back(plan_.job.spec.checkpoint_signal);
  if (node::JobTrace::is_free(plan_.job.spec)) wanted.push_back(node::JobTrace::kSignal);
  for (const int signal : wanted) {
    if (!is_ignored(signal)) signals_.add(signal);
  }
  for (const NodePlace& place : plan_.order.places) unreached_.insert(place.host);
}

std::shared_ptr<OutputWriter> HostsRun::writer(int fd) {
  return std::make_shared<OutputWriter>(io_, fd, [this] { launcher_.resume_reading(); });
}

int HostsRun::run() {
  if (server_) {
    server_->on_job_finished([this](const std::string& job_id, const wire::Finish& finish) {
      if (job_id == plan_.job.spec.job_id) on_job_finished(finish);
    });
    trace_.whole_job(*server_);
  }
  wait_for_signal();
  tell_unreached_later();
  launcher_.start();
  if (plan_.status_line && server_) status_.emplace(io_, *server_, plan_.job.spec.job_id, *error_);
  io_.run();
  status_.reset();
  conclude();
  return finish_->exit_code;
}

void HostsRun::on_line(Stream stream, std::string_view line) {
  OutputWriter& writer = stream == Stream::kOutput ? *output_ : *error_;
  writer.write(line);
  if (writer.full()) launcher_.pause_reading();
}

void HostsRun::say(const std::string& text) { error_->write("ddp-run: " + text + "\n"); }

void HostsRun::notice(const std::string& text) {
  if (log::enabled(log::Level::kWarning)) say(text);
}

void HostsRun::tell_unreached_later() {
  notice_.after(kWaitingNoticePeriod, [this] {
    if (unreached_.empty() || finish_ || failure_ || interrupted_by_ != 0) return;
    notice(fmt::format("reached {} of {} hosts; waiting for {}",
                       plan_.order.places.size() - unreached_.size(), plan_.order.places.size(),
                       rendezvous::some_of({unreached_.begin(), unreached_.end()})));
    tell_unreached_later();
  });
}

void HostsRun::on_report(const NodeReport& report) {
  unreached_.erase(report.host);
  switch (report.kind) {
    case NodeReport::Kind::kReached:
      return;
    case NodeReport::Kind::kEnded:
      --open_;
      return on_node_end(report);
    case NodeReport::Kind::kUnreachable:
    case NodeReport::Kind::kLost:
      --open_;
      return on_gone(report);
  }
}

// Lost connections are not reported once a signal or the job's end has ended the job.
void HostsRun::on_gone(const NodeReport& report) {
  if (interrupted_by_ != 0 || finish_ || failure_) return;
  const bool unreachable = report.kind == NodeReport::Kind::kUnreachable;
  const std::string what =
      fmt::format("host {} {}: {}", report.host, unreachable ? "cannot be reached" : "was lost",
                  report.summary);
  if (open_ >= plan_.job.spec.rules.min_nodes) {
    return notice(fmt::format("{}; going on with {} of {} hosts (--nnodes {}:{})", what, open_,
                              plan_.order.places.size(), plan_.job.spec.rules.min_nodes,
                              plan_.job.spec.rules.max_nodes));
  }
  if (unreachable) return fail(kExitJoinTimeout, what);
  fail(kExitNodeLost,
       fmt::format("{}; {} of {} hosts left, and --nnodes wants {}. Start the same command "
                   "again: a training with checkpoints goes on from the newest",
                   what, open_, plan_.order.places.size(), plan_.job.spec.rules.min_nodes));
}

void HostsRun::on_node_end(const NodeReport& report) {
  if (finish_) return;
  if (report.exit_code == kExitSuccess) return on_success();
  if (!first_end_) first_end_ = report;
  if (interrupted_by_ != 0 || failure_) return;
  // If the rendezvous is elsewhere, only the other nodes' ends tell whether the job has ended.
  if (!server_) return tell_of_first_end_later();
  if (open_ >= plan_.job.spec.rules.min_nodes) {
    return notice(
        fmt::format("host {}: {}; going on with {} hosts", report.host, report.summary, open_));
  }
  fail(report.exit_code, fmt::format("host {}: {}", report.host, report.summary));
}

// Without the rendezvous: the job has gone on without the host that failed first.
void HostsRun::on_success() {
  if (server_ || !first_end_) return;
  if (!first_end_told_) tell_of_first_end();
  first_end_.reset();
}

// The end of a whole job comes from all hosts at once.
void HostsRun::tell_of_first_end_later() {
  if (first_end_told_) return;
  going_on_.after(kPatience, [this] {
    if (first_end_ && interrupted_by_ == 0 && !failure_) tell_of_first_end();
  });
}

void HostsRun::tell_of_first_end() {
  going_on_.cancel();
  first_end_told_ = true;
  notice(fmt::format("host {}: {}; the job goes on without it", first_end_->host,
                     first_end_->summary));
}

void HostsRun::on_job_finished(const wire::Finish& finish) {
  if (!finish_) finish_ = finish;
  look_at_the_end();
}

// The job cannot go on.
void HostsRun::fail(int exit_code, const std::string& why) {
  failure_ = wire::Finish{exit_code, why, "", ""};
  if (server_) server_->end_job(plan_.job.spec.job_id, exit_code, why);
  launcher_.signal(ending_signal(plan_.job.spec.signals, SIGTERM));
  look_at_the_end();
}

void HostsRun::look_at_the_end() {
  patience_.after(kPatience, [this] {
    notice(fmt::format(
        "the job is over; waiting for {} to end (press Ctrl-C three times to stop waiting)",
        rendezvous::some_of(launcher_.open_hosts())));
  });
}

void HostsRun::wait_for_signal() {
  signals_.async_wait([this](const std::error_code& error, int signal) {
    if (error) return;
    wait_for_signal();
    if (signal == plan_.job.spec.checkpoint_signal) {
      launcher_.signal(signal);
    } else if (signal == node::JobTrace::kSignal && node::JobTrace::is_free(plan_.job.spec)) {
      if (server_) return trace_.next_steps(*server_);
      notice("no trace from here: run ddp-run trace with the endpoint of the rendezvous");
    } else {
      on_signal(signal);
    }
  });
}

void HostsRun::on_signal(int signal) {
  constexpr int kEnough = 3;
  if (interrupted_by_ == 0) interrupted_by_ = signal;
  if (server_) page_file_.job_is_stopped(*server_);
  if (++interrupts_ < kEnough) return launcher_.signal(signal);
  launcher_.kill();
}

void HostsRun::conclude() {
  if (failure_) {
    finish_ = failure_;
  } else if (!finish_ && interrupted_by_ != 0) {
    finish_ = wire::Finish{kExitSignalBase + interrupted_by_,
                           fmt::format("stopped by {}", signal_name(interrupted_by_)), "", ""};
  } else if (!finish_ && first_end_) {
    finish_ = wire::Finish{first_end_->exit_code,
                           fmt::format("host {}: {}", first_end_->host, first_end_->summary),
                           first_end_->report, first_end_->error};
  } else if (!finish_) {
    finish_ = wire::Finish{};
  }
  if (server_) {
    server_->end_traces();
    const auto kept = page_file_.write(*server_, finish_->exit_code, finish_->summary);
    if (!kept) say(kept.error().message);
    io_.restart();
    page_file_.show(*server_, finish_->exit_code, finish_->summary, [this] { io_.stop(); });
    io_.run();
  }
  if (finish_->exit_code == kExitSuccess) return;
  if (plan_.job.is_check && finish_->exit_code == kExitUnfit) return;
  output_.reset();  // Flushes the workers' output before the report.
  node::tell_launcher_above(finish_->exit_code, finish_->summary, finish_->error);
  if (finish_->report.empty()) return say(finish_->summary);
  error_->write(finish_->report + (finish_->report.ends_with('\n') ? "" : "\n"));
}

int run_on_hosts(const flags::Options& options, const machine::Machine& machine) {
  auto plan = plan_hosts(options, machine, own_executable(), own_folder());
  if (!plan) return refuse(plan.error());
  if (options.spec.dry_run) return dry_run_hosts(*plan, options);
  asio::io_context io(1);
  auto server = hosting::host_rendezvous(io, plan->job);
  if (!server) return refuse(server.error());
  plan->status_line = options.spec.output.status_line && terminal::can_show_status(STDERR_FILENO);
  // A rendezvous that already answers at the named endpoint is used.
  set_endpoint(*plan);
  return HostsRun(io, std::move(*plan), options.launch_agent, std::move(*server)).run();
}

}  // namespace ddp::hosts
