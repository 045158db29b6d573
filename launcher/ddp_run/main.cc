#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/exit_codes.h"
#include "common/config/rdzv_token.h"
#include "common/log/log.h"
#include "common/process/descriptor_limit.h"
#include "common/terminal/terminal.h"
#include "launcher/ddp_run/completion.h"
#include "launcher/ddp_run/dry_run.h"
#include "launcher/ddp_run/exit_error.h"
#include "launcher/ddp_run/flag_table.h"
#include "launcher/ddp_run/flags.h"
#include "launcher/ddp_run/hosting.h"
#include "launcher/ddp_run/hosts_run.h"
#include "launcher/ddp_run/job_plan.h"
#include "launcher/ddp_run/log_folder.h"
#include "launcher/ddp_run/machine.h"
#include "launcher/ddp_run/meeting_file.h"
#include "launcher/ddp_run/notices.h"
#include "launcher/ddp_run/predecessor.h"
#include "launcher/ddp_run/program.h"
#include "launcher/ddp_run/started_node.h"
#include "launcher/ddp_run/status_command.h"
#include "launcher/ddp_run/step_rendezvous.h"
#include "launcher/ddp_run/step_run.h"
#include "launcher/ddp_run/step_token.h"
#include "launcher/ddp_run/supervisor.h"
#include "launcher/hosts/parent_link.h"

namespace {

using namespace ddp;  // NOLINT(google-build-using-namespace): a main file.

// Reports the error and gives the exit status. In a SLURM step, only the first task of a node
// prints. `node`: the link to the ddp-run that started this one; null if a person or a script did.
int fail(const Error& error, const run::Options& options, const run::StartedNode* node = nullptr) {
  if (node != nullptr) {
    node->tell_end(run::exit_code_of(error), error.message, "", "");
  } else if (!run::is_follower(options)) {
    if (run::exit_code_of(error) == kExitUsage)
      std::fputs("usage: ddp-run [FLAG...] PROGRAM [ARG...]\n", stderr);
    std::fprintf(stderr, "ddp-run: %s\n", error.message.c_str());
  }
  return run::exit_code_of(error);
}

int supervise(run::Supervisor& supervisor, asio::io_context& io, run::StartedNode* node) {
  if (node == nullptr) return supervisor.run();
  supervisor.tell_end_to(
      [node](int exit_code, const std::string& summary, const std::string& report,
             const std::string& error) { node->tell_end(exit_code, summary, report, error); });
  node->watch(io);
  const int status = supervisor.run();
  node->stop_watching();
  return status;
}

// Runs the planned job; gives the exit status.
int run_job(const run::Options& options, run::JobPlan& plan, run::StartedNode* node) {
  auto step = run::StepRun::begin(plan);
  if (!step) return fail(step.error(), options, node);
  const auto end_early = [&](const Error& error) {
    const int status = fail(error, options, node);
    step->end(plan, status, false, false);
    return status;
  };
  const UniqueFd place = run::wait_for_predecessor(plan.spec);
  if (plan.host) run::make_step_token(plan);
  asio::io_context io(1);
  auto meeting = run::MeetingFile::enter(plan);
  if (!meeting) return end_early(meeting.error());
  auto server = run::host_rendezvous(io, plan);  // Not with etcd: plan.host is false.
  if (!server) return end_early(server.error());
  if (const auto told = meeting->announce(plan); !told) return end_early(told.error());
  meeting = run::MeetingFile();  // Unlocks the file for the next node.
  if (*server) {
    const std::string warning = run::warning_if_open(plan.spec, plan.bind_address);
    if (!warning.empty()) run::print_notice(warning);
  }
  if (!plan.host && !plan.step_ports.empty()) {
    if (const auto found = run::find_step_rendezvous(plan); !found) return end_early(found.error());
  }
  run::Supervisor supervisor(io, std::move(plan), std::move(*server));
  const int status = supervise(supervisor, io, node);
  step->end(supervisor.plan(), status, supervisor.to_be_continued(), supervisor.has_hosted());
  return status;
}

void prepare_process() {
  // Makes the orphans of a killed agent children of this process, which ends them.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::signal(SIGPIPE, SIG_IGN);
  // If SIGCHLD were ignored, the kernel would discard the agent's status.
  ::signal(SIGCHLD, SIG_DFL);
  raise_descriptor_limit();  // For the rendezvous, or for many hosts.
}

const char* environment(const char* name) { return std::getenv(name); }

void show_where_logs_are(const run::Options& options, const config::JobSpec& spec) {
  if (spec.log_dir.empty()) return;
  run::link_latest(spec.log_dir, spec.job_id);
  if (!options.log_dir_is_default) return;
  run::print_notice(fmt::format("the workers' output is in {}/{}", spec.log_dir,
                                config::job_folder_name(spec.job_id)));
}

int run_node(run::Options options, const run::Machine& machine,
             const std::vector<std::string>& arguments, run::StartedNode* node) {
  if (node != nullptr) node->complete(options);
  if (const auto found = run::check_program(options); !found)
    return fail(found.error(), options, node);
  if (node == nullptr) {
    if (const auto wrong = run::misplaced(options, arguments, environment))
      return fail(*wrong, options);
  }
  auto plan = run::plan_job(options, machine);
  if (!plan) return fail(plan.error(), options, node);
  if (options.dry_run) {
    prepare_process();
    return run::is_follower(options) ? kExitSuccess : run::dry_run(std::move(*plan));
  }
  if (run::is_follower(options)) return fail(run::become_task(options), options);
  if (node != nullptr) node->complete(*plan);
  plan->spec.notices = log::enabled(log::Level::kWarning);
  plan->spec.output.status_line &= terminal::can_show_status(STDERR_FILENO);
  show_where_logs_are(options, plan->spec);
  prepare_process();
  return run_job(options, *plan, node);
}

int run_as_started() {
  const auto started = run::StartedNode::start();
  if (const int* status = std::get_if<int>(&started)) return *status;
  run::StartedNode* node = std::get<0>(started).get();
  auto options = run::parse_flags(node->arguments(), run::StartedNode::environment);
  if (!options) return fail(options.error(), {}, node);
  config::forget_token_variable();
  log::init("ddp-run", "");
  const auto machine = run::Machine::this_one(run::StartedNode::environment);
  return run_node(std::move(*options), machine, node->arguments(), node);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const auto status = run::run_status_command(arguments)) return *status;
  if (hosts::ParentLink::is_wanted(arguments)) return run_as_started();
  auto options = run::parse_flags(arguments, environment);
  if (!options) return fail(options.error(), {});
  config::forget_token_variable();
  if (options->help || options->version) {
    std::fputs(options->help ? run::help_text().c_str() : "ddp-run " DDP_VERSION "\n", stdout);
    return kExitSuccess;
  }
  if (!options->completion.empty()) {
    std::fputs(run::completion_script(options->completion).c_str(), stdout);
    return kExitSuccess;
  }
  log::init("ddp-run", "");
  for (const std::string& warning : options->warnings) run::print_notice(warning);
  const auto machine = run::Machine::this_one(environment);
  if (options->host_list.empty()) {
    return run_node(std::move(*options), machine, arguments, nullptr);
  }
  prepare_process();
  return run::run_on_hosts(*options, machine);
}
