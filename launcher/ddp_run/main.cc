#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/base/release.h"
#include "common/config/rdzv_token.h"
#include "common/log/log.h"
#include "common/process/descriptor_limit.h"
#include "common/process/standard_descriptors.h"
#include "common/terminal/terminal.h"
#include "launcher/check/check_command.h"
#include "launcher/check/check_node.h"
#include "launcher/completion/completion.h"
#include "launcher/ddp_rendezvous/daemon_program.h"
#include "launcher/ddp_run/subprogram.h"
#include "launcher/flags/flag_table.h"
#include "launcher/flags/flags.h"
#include "launcher/hosting/hosting.h"
#include "launcher/hosting/meeting_file.h"
#include "launcher/hosts/hosts_run.h"
#include "launcher/hosts/parent_link.h"
#include "launcher/hosts/started_node.h"
#include "launcher/machine/machine.h"
#include "launcher/node/dry_run.h"
#include "launcher/node/notices.h"
#include "launcher/node/predecessor.h"
#include "launcher/node/supervisor.h"
#include "launcher/plan/job_plan.h"
#include "launcher/plan/log_folder.h"
#include "launcher/plan/program.h"
#include "launcher/slurm/step_rendezvous.h"
#include "launcher/slurm/step_run.h"
#include "launcher/slurm/step_token.h"
#include "launcher/status/status_command.h"
#include "launcher/trace/trace_command.h"

namespace {

using namespace ddp;  // NOLINT(google-build-using-namespace): a main file.

// Reports the error and gives the exit status. In a SLURM step, only the first task of a node
// prints. `node`: the link to the ddp-run that started this one; null if a person or a script did.
int fail(const Error& error, const flags::Options& options,
         const hosts::StartedNode* node = nullptr) {
  if (node != nullptr) {
    node->tell_end(exit_code_of(error), error.message, "", "");
  } else if (!plan::is_follower(options)) {
    if (exit_code_of(error) == kExitUsage)
      std::fputs("usage: ddp-run [FLAG...] PROGRAM [ARG...]\n", stderr);
    std::fprintf(stderr, "ddp-run: %s\n", error.message.c_str());
  }
  return exit_code_of(error);
}

int supervise(node::Supervisor& supervisor, asio::io_context& io, hosts::StartedNode* node) {
  if (node == nullptr) return supervisor.run();
  supervisor.tell_end_to(
      [node](int exit_code, const std::string& summary, const std::string& report,
             const std::string& error) { node->tell_end(exit_code, summary, report, error); });
  node->watch(io);
  const int status = supervisor.run();
  node->stop_watching();
  return status;
}

// srun can end the tasks of a step once one of them has failed. By then the others are about to end
// with the job's status, which the signal must not replace.
void let_no_signal_change_the_status(const std::vector<int>& signals) {
  sigset_t late;
  ::sigemptyset(&late);
  for (const int signal : signals) ::sigaddset(&late, signal);
  ::sigprocmask(SIG_BLOCK, &late, nullptr);
}

// Runs the planned job; gives the exit status.
int run_job(const flags::Options& options, plan::JobPlan& plan, hosts::StartedNode* node) {
  auto step = slurm::StepRun::begin(plan);
  if (!step) return fail(step.error(), options, node);
  const auto end_early = [&](const Error& error) {
    const int status = fail(error, options, node);
    step->end(plan, status, false, false);
    return status;
  };
  const UniqueFd place = node::wait_for_predecessor(plan.spec);
  check::check_health(options, plan);
  if (plan.host) slurm::make_step_token(plan);
  asio::io_context io(1);
  auto meeting = hosting::MeetingFile::enter(plan);
  if (!meeting) return end_early(meeting.error());
  auto server = hosting::host_rendezvous(io, plan);  // Not with etcd: plan.host is false.
  if (!server) return end_early(server.error());
  if (const auto told = meeting->announce(plan); !told) return end_early(told.error());
  meeting = hosting::MeetingFile();  // Unlocks the file for the next node.
  if (*server) {
    const std::string warning = plan::warning_if_open(plan.spec, plan.bind_address);
    if (!warning.empty()) node::print_notice(warning);
    const std::string loss = plan::what_its_loss_means(plan);
    if (plan.spec.notices && !loss.empty()) node::print_notice(loss);
  }
  if (!plan.host && !plan.step_ports.empty()) {
    if (const auto found = slurm::find_step_rendezvous(plan); !found)
      return end_early(found.error());
  }
  node::Supervisor supervisor(io, std::move(plan), std::move(*server));
  const int status = supervise(supervisor, io, node);
  step->end(supervisor.plan(), status, supervisor.to_be_continued(), supervisor.has_hosted());
  let_no_signal_change_the_status(supervisor.plan().spec.signals);
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

void show_where_logs_are(const flags::Options& options, const config::JobSpec& spec) {
  if (spec.log_dir.empty()) return;
  plan::link_latest(spec.log_dir, spec.job_id);
  if (!options.log_dir_is_default) return;
  node::print_notice(fmt::format("the workers' output is in {}/{}", spec.log_dir,
                                 config::job_folder_name(spec.job_id)));
}

int run_node(flags::Options options, const machine::Machine& machine,
             const std::vector<std::string>& arguments, hosts::StartedNode* node) {
  if (node != nullptr) node->complete(options);
  if (const auto found = plan::check_program(options); !found)
    return fail(found.error(), options, node);
  if (node == nullptr) {
    if (const auto wrong = slurm::misplaced(options, arguments, environment))
      return fail(*wrong, options);
  }
  auto plan = plan::plan_job(options, machine);
  if (!plan) return fail(plan.error(), options, node);
  check::plan_check(options, *plan);
  if (options.spec.dry_run) {
    prepare_process();
    return plan::is_follower(options) ? kExitSuccess : node::dry_run(std::move(*plan));
  }
  if (plan::is_follower(options)) return fail(slurm::become_task(options), options);
  if (node != nullptr) node->complete(*plan);
  plan->spec.notices = log::enabled(log::Level::kWarning);
  plan->spec.output.status_line &= terminal::can_show_status(STDERR_FILENO);
  show_where_logs_are(options, plan->spec);
  prepare_process();
  return run_job(options, *plan, node);
}

int run_as_started() {
  const auto started = hosts::StartedNode::start();
  if (const int* status = std::get_if<int>(&started)) return *status;
  hosts::StartedNode* node = std::get<0>(started).get();
  auto options = flags::parse_flags(node->arguments(), hosts::StartedNode::environment);
  if (!options) return fail(options.error(), {}, node);
  if (const auto marked = check::mark_check(*options); !marked)
    return fail(marked.error(), *options, node);
  config::forget_token_variable();
  log::init("ddp-run");
  const auto machine = machine::Machine::this_one(hosts::StartedNode::environment);
  return run_node(std::move(*options), machine, node->arguments(), node);
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_descriptors();
  // The name decides: bin/ddp-rendezvous is a link to this program.
  if (argc > 0 && std::filesystem::path(argv[0]).filename() == "ddp-rendezvous")
    return daemon::run_daemon_program(argc, argv);
  const std::vector<std::string> given(argv + 1, argv + argc);
  if (const auto status = check::run_check_node(given)) return *status;
  const auto line = check::job_line(given);
  if (const int* status = std::get_if<int>(&line)) return *status;
  const auto& arguments = std::get<0>(line);
  if (const auto status = status::run_status_command(arguments)) return *status;
  if (const auto status = run::run_subprogram(arguments)) return *status;
  if (const auto status = trace::run_trace_command(arguments)) return *status;
  if (hosts::ParentLink::is_wanted(arguments)) return run_as_started();
  auto options = flags::parse_flags(arguments, environment);
  if (!options) return fail(options.error(), {});
  if (const auto marked = check::mark_check(*options); !marked)
    return fail(marked.error(), *options);
  config::forget_token_variable();
  if (options->help || options->version) {
    const std::string version = fmt::format("ddp-run {}\n", release());
    std::fputs(options->help ? flags::help_text().c_str() : version.c_str(), stdout);
    return kExitSuccess;
  }
  if (!options->completion.empty()) {
    std::fputs(completion::completion_script(options->completion).c_str(), stdout);
    return kExitSuccess;
  }
  log::init("ddp-run");
  for (const std::string& warning : options->warnings) node::print_notice(warning);
  const auto machine = machine::Machine::this_one(environment);
  if (options->host_list.empty()) {
    return run_node(std::move(*options), machine, arguments, nullptr);
  }
  prepare_process();
  return hosts::run_on_hosts(*options, machine);
}
