#include "launcher/slurm/step/step.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "common/base/parse_number.h"
#include "common/config/derived_port.h"
#include "common/config/slurm_list.h"

namespace ddp::slurm {
namespace {

// Step numbers from here on are not srun's: the batch script, salloc's shell, and similar.
constexpr std::int64_t kFirstSpecialStep = 0xffff'fff0;
constexpr int kPortsTried = 16;

std::string text_of(const GetEnvironment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? std::string() : std::string(value);
}

// Whether this is the environment of a task of srun. A worker inherits that environment from its
// ddp-run but is not a task.
bool is_task(const GetEnvironment& environment) {
  const auto step = parse_whole_number<std::int64_t>(text_of(environment, "SLURM_STEP_ID"), 0);
  return step && *step < kFirstSpecialStep && environment("SLURM_PROCID") != nullptr &&
         environment("DDP_NODE_ID") == nullptr;
}

// Reads variables and keeps the first error.
class Variables {
 public:
  explicit Variables(const GetEnvironment& environment) : environment_(environment) {}

  std::string text(const char* name) {
    std::string value = text_of(environment_, name);
    if (value.empty()) {
      fail(make_error(
          Errc::kInvalidArgument,
          "{} is not set although SLURM_STEP_ID is; pass SLURM's whole environment to ddp-run "
          "(also into a container), or name the nodes: --nnodes, --rdzv-endpoint",
          name));
    }
    return value;
  }

  int number(const char* name) {
    const std::string value = text(name);
    const auto number = parse_whole_number<std::int64_t>(value, 0);
    if (number && *number <= std::numeric_limits<int>::max()) return static_cast<int>(*number);
    if (!value.empty())
      fail(make_error(Errc::kInvalidArgument, "{}={}: not a number", name, value));
    return 0;
  }

  template <typename T>
  std::vector<T> list(const char* name,
                      Result<std::vector<T>> (*expand)(std::string_view, std::size_t)) {
    const std::string value = text(name);
    if (value.empty()) return {};
    auto items = expand(value, config::kMaxListedHosts);
    if (items) return std::move(*items);
    fail(make_error(Errc::kInvalidArgument, "{}={}: {}", name, value, items.error().message));
    return {};
  }

  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  const GetEnvironment& environment_;
  std::optional<Error> error_;
};

// The error if the variables do not describe the same step.
std::optional<Error> contradiction(const Step& step, int num_nodes, int num_tasks) {
  const auto wrong = [](const char* what, std::int64_t is, std::int64_t should_be) {
    return make_error(Errc::kInvalidArgument,
                      "{} is {}, but SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE say {}; "
                      "start ddp-run directly with srun",
                      what, is, should_be);
  };
  if (num_nodes != step.num_nodes())
    return wrong("SLURM_STEP_NUM_NODES", num_nodes, step.num_nodes());
  if (step.tasks.size() != step.hosts.size()) {
    return make_error(Errc::kInvalidArgument,
                      "SLURM_STEP_TASKS_PER_NODE describes {} nodes and SLURM_STEP_NODELIST {}; "
                      "start ddp-run directly with srun",
                      step.tasks.size(), step.hosts.size());
  }
  const auto sum = std::accumulate(step.tasks.begin(), step.tasks.end(), std::int64_t{0});
  if (num_tasks != sum) return wrong("SLURM_STEP_NUM_TASKS", num_tasks, sum);
  if (step.node_rank >= num_nodes)
    return make_error(Errc::kInvalidArgument, "SLURM_NODEID={}: the step has {} nodes",
                      step.node_rank, num_nodes);
  if (step.rank >= num_tasks)
    return make_error(Errc::kInvalidArgument, "SLURM_PROCID={}: the step has {} tasks", step.rank,
                      num_tasks);
  if (step.local_rank >= step.tasks_here())
    return make_error(Errc::kInvalidArgument,
                      "SLURM_LOCALID={}: the step has {} tasks on this node", step.local_rank,
                      step.tasks_here());
  return std::nullopt;
}

}  // namespace

bool Step::tasks_are_workers() const {
  return std::any_of(tasks.begin(), tasks.end(), [](int count) { return count > 1; });
}

bool Step::ranks_follow_nodes() const {
  return rank == std::accumulate(tasks.begin(), tasks.begin() + node_rank, 0) + local_rank;
}

std::string Step::run_id() const { return fmt::format("{}.{}.{}", job_id, step_id, restart); }

std::string Step::shared_run_id() const { return fmt::format("{}.{}", job_id, restart); }

Result<std::optional<Step>> read_step(const GetEnvironment& environment) {
  if (!is_task(environment)) return std::optional<Step>();
  Variables variables(environment);
  Step step;
  step.job_id = variables.text("SLURM_JOB_ID");
  step.step_id = variables.text("SLURM_STEP_ID");
  step.hosts = variables.list("SLURM_STEP_NODELIST", config::expand_host_list);
  step.tasks = variables.list("SLURM_STEP_TASKS_PER_NODE", config::expand_task_counts);
  const int num_nodes = variables.number("SLURM_STEP_NUM_NODES");
  const int num_tasks = variables.number("SLURM_STEP_NUM_TASKS");
  step.node_rank = variables.number("SLURM_NODEID");
  step.rank = variables.number("SLURM_PROCID");
  step.local_rank = variables.number("SLURM_LOCALID");
  // SLURM sets it from the second start on.
  if (environment("SLURM_RESTART_COUNT") != nullptr)
    step.restart = variables.number("SLURM_RESTART_COUNT");
  if (variables.error()) return *variables.error();
  if (const auto error = contradiction(step, num_nodes, num_tasks)) return *error;

  const std::string array = text_of(environment, "SLURM_ARRAY_JOB_ID");
  const std::string task = text_of(environment, "SLURM_ARRAY_TASK_ID");
  if (!array.empty() && !task.empty()) step.array_id = array + "_" + task;
  // 0 if the job has no time limit.
  step.end_time = parse_whole_number<std::int64_t>(text_of(environment, "SLURM_JOB_END_TIME"), 0);
  if (step.end_time == 0) step.end_time.reset();
  return std::optional<Step>(std::move(step));
}

std::vector<int> rendezvous_ports(const Step& step) {
  // run_id() has the restart count: a restarted job needs other ports, because those of its former
  // run may still be in use.
  return config::derived_ports(step.run_id(), kPortsTried);
}

std::optional<Allocation> read_allocation(const GetEnvironment& environment) {
  const bool allocated = environment("SLURM_JOB_ID") != nullptr;
  if (!allocated || is_task(environment) || environment("DDP_NODE_ID") != nullptr)
    return std::nullopt;
  const auto nodes =
      parse_whole_number<std::int64_t>(text_of(environment, "SLURM_JOB_NUM_NODES"), 0);
  return Allocation{static_cast<int>(std::clamp<std::int64_t>(nodes.value_or(1), 1,
                                                              std::numeric_limits<int>::max())),
                    environment("SLURMD_NODENAME") != nullptr};
}

}  // namespace ddp::slurm
