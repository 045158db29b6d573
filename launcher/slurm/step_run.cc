#include "launcher/slurm/step_run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/exit_error.h"
#include "common/base/shell_words.h"
#include "launcher/node/agent_process.h"
#include "launcher/slurm/scontrol.h"
#include "launcher/slurm/step_rendezvous.h"
#include "launcher/slurm/task_door.h"

namespace ddp::slurm {
namespace {

// How long the first node may take to report and to talk to SLURM.
constexpr Duration kFirstNodeLimit{15'000};
// How long the node's other tasks may take to fetch their status. They already wait at the socket.
constexpr Duration kDismissLimit{2'000};

void say(const std::string& text) { std::fprintf(stderr, "ddp-run: %s\n", text.c_str()); }

// SLURM sends SIGTERM with the requeue; this process must live to say that the requeue is done.
void ignore_signals() {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1}) ::signal(number, SIG_IGN);
}

void continue_job(const Step& step) {
  ignore_signals();
  const auto requeued = requeue(step);
  if (requeued) {
    say(fmt::format("SLURM job {} was put back into the queue and goes on from its checkpoint",
                    step.scontrol_id()));
  } else {
    say(
        fmt::format("SLURM job {} was stopped to go on later, but could not be put back into the "
                    "queue: {}. If slurm.conf has RequeueExit={}, exit status {} requeues it; "
                    "otherwise submit it again, or type: scontrol requeue {}",
                    step.scontrol_id(), requeued.error().message, static_cast<int>(kExitRequeue),
                    static_cast<int>(kExitRequeue), step.scontrol_id()));
  }
}

// When the agent asks for a checkpoint, so that there is time to write it: by the monotonic clock,
// because the wall clock may be set later. Not at once if the job's time is short.
std::int64_t checkpoint_moment_ms(std::int64_t end_time, std::int64_t before_ms) {
  const std::int64_t now_ms = static_cast<std::int64_t>(std::time(nullptr)) * 1'000;
  const std::int64_t left_ms = end_time * 1'000 - now_ms;
  if (before_ms <= 0 || left_ms <= 0) return 0;
  const auto now = std::chrono::floor<Duration>(Clock::now().time_since_epoch());
  return now.count() + left_ms - std::min(before_ms, left_ms - left_ms / 20);
}

// Whether this node requeues the job. If each node has a step of its own, every node is the first
// of its step, so that says nothing. Another node may have taken over from a first one that is
// gone.
bool sees_to_requeue(const plan::JobPlan& plan, bool has_hosted) {
  return has_hosted || (plan.step_is_part ? plan.spec.node_rank : plan.step->node_rank) == 0;
}

}  // namespace

Error become_task(const flags::Options& options) {
  const std::string program = node::agent_program();
  std::vector<std::string> arguments{program,
                                     "--task-socket",
                                     task_socket_name(*options.step),
                                     "--task-rank",
                                     std::to_string(options.step->local_rank),
                                     "--task-limit-ms",
                                     std::to_string(options.spec.rules.join_timeout_ms)};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  return exit_error(kExitNotFound, "{}: cannot be executed; it belongs beside ddp-run", program);
}

Result<StepRun> StepRun::begin(plan::JobPlan& plan) {
  StepRun run;
  if (!plan.step) return run;
  if (plan.spec.in_tasks) {
    auto door = open_task_door(*plan.step);
    if (!door) return exit_error(kExitInternal, "{}", door.error().message);
    run.door_ = std::move(*door);
    plan.tasks_fd = run.door_.get();
  }
  if (!plan.requeue || !plan.host) return run;
  if (!plan.step->end_time) plan.step->end_time = ask_end_time(*plan.step);
  if (plan.step->end_time)
    plan.spec.checkpoint_at_ms = checkpoint_moment_ms(*plan.step->end_time, plan.requeue_before_ms);
  return run;
}

void StepRun::end(const plan::JobPlan& plan, int exit_code, bool to_be_continued,
                  bool has_hosted) const {
  if (!plan.step) return;
  if (to_be_continued && sees_to_requeue(plan, has_hosted)) continue_job(*plan.step);
  const bool is_elsewhere = !plan.step_ports.empty() && !plan.host && !has_hosted;
  if (is_elsewhere) wait_for_end_of_rendezvous(plan, kFirstNodeLimit);
  if (door_) dismiss_tasks(door_, exit_code, plan.spec.nproc - 1, kDismissLimit);
}

std::optional<Error> misplaced(const flags::Options& options,
                               const std::vector<std::string>& arguments,
                               const GetEnvironment& environment) {
  if (options.standalone || options.endpoint || options.placement) return std::nullopt;
  const auto allocation = read_allocation(environment);
  if (!allocation || (allocation->num_nodes == 1 && allocation->on_a_node)) return std::nullopt;
  std::vector<std::string> words{"srun", "ddp-run"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return exit_error(
      kExitInvalidValue,
      "this is not a step of SLURM job {}, so ddp-run would run {} and not on the job's {}; type: "
      "{}\n(to run on this machine alone anyway, add --standalone)",
      environment("SLURM_JOB_ID"), allocation->on_a_node ? "on this node alone" : "here",
      allocation->num_nodes == 1 ? "node" : fmt::format("{} nodes", allocation->num_nodes),
      shell_quote(words));
}

}  // namespace ddp::slurm
