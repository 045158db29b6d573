#include "agent/process/node_output.h"

#include <utility>

#include <fmt/format.h>

#include "agent/process/log_files.h"
#include "agent/process/worker_env.h"

namespace ddp::agent {
namespace {

constexpr std::array kStreams{config::kStdout, config::kStderr};

std::string stall_advice(const config::JobSpec& spec) {
  if (spec.log_dir.empty()) return "with --log-dir they would be in files";
  return fmt::format("output with a log file is in {}/{}", spec.log_dir,
                     config::job_folder_name(spec.job_id));
}

}  // namespace

NodeOutput::NodeOutput(asio::io_context& io, const config::JobSpec& spec, Console::Pair console)
    : spec_(spec), console_(std::move(console)) {
  for (const int stream : kStreams) {
    const std::shared_ptr<Console>& target = console_pointer(stream);
    target->set_stall_limit(Duration(spec.output.console_timeout_ms), stall_advice(spec));
    if (spec.output.fold) folded_[index(stream)] = std::make_shared<FoldedLines>(io, target);
  }
}

void NodeOutput::begin_round(const wire::RoundStart& round) {
  const int nproc = round.members.at(static_cast<std::size_t>(round.group_rank)).nproc;
  for (const int stream : kStreams) {
    open_filtered(round, stream);
    if (const auto& folded = folded_[index(stream)]; folded) {
      folded->begin_round(nproc, [this, round](const std::vector<int>& local_ranks) {
        return prefix(round, local_ranks);
      });
    }
  }
}

void NodeOutput::open_filtered(const wire::RoundStart& round, int stream) {
  const config::OutputSpec& output = spec_.output;
  const auto& texts = stream == config::kStdout ? output.stdout_filters : output.stderr_filters;
  if (spec_.log_dir.empty() || texts.empty()) return;
  auto file = open_filtered_log(spec_.log_dir, spec_.job_id, round.round, round.group_rank, stream);
  if (!file) {
    return console_.err->print(
        fmt::format("ddp-run: --log-dir: {}; ddp-run goes on without it", file.error().message));
  }
  filtered_[index(stream)] = std::make_shared<FilteredLog>(std::move(*file), texts);
}

LinePrefix NodeOutput::prefix_of(const std::string& rank, const std::string& local_rank,
                                 const std::string& node_rank) const {
  return LinePrefix(
      spec_.output.has_prefix ? std::string_view(spec_.output.prefix) : LinePrefix::kDefault,
      {spec_.role, rank, local_rank, spec_.host, node_rank});
}

LinePrefix NodeOutput::prefix(const wire::RoundStart& round,
                              const std::vector<int>& local_ranks) const {
  std::vector<Rank> ranks;
  for (const int local_rank : local_ranks) ranks.push_back(rank_of(round, local_rank));
  return prefix_of(config::rank_set_text(ranks), config::rank_set_text(local_ranks),
                   std::to_string(round.group_rank));
}

config::StreamPlaces NodeOutput::places(const wire::RoundStart& round, int local_rank) const {
  return config::places_of(spec_.output, !spec_.log_dir.empty(), rank_of(round, local_rank),
                           local_rank);
}

OutputCapture::Route NodeOutput::route(const wire::RoundStart& round, int local_rank,
                                       int stream) const {
  OutputCapture::Route route;
  route.to_console = (places(round, local_rank).console & stream) != 0;
  // The output of a single worker need not be cut into lines, unless a prefix was requested.
  route.whole_lines = round.world_size > 1 || spec_.single_node_prefix || spec_.output.has_prefix;
  route.local_rank = local_rank;
  route.filtered = filtered_[index(stream)];
  if (!route.whole_lines) return route;
  route.prefix = prefix(round, {local_rank});
  route.folded = folded_[index(stream)];
  return route;
}

int NodeOutput::files(const wire::RoundStart& round, int local_rank) const {
  return places(round, local_rank).file;
}

OutputCapture::Route NodeOutput::standby_route(int stream) const {
  OutputCapture::Route route;
  const auto places = config::places_of(spec_.output, !spec_.log_dir.empty(), -1, -1);
  route.to_console = (places.console & stream) != 0;
  route.whole_lines = true;
  route.prefix = prefix_of("standby", "standby", "");
  return route;
}

// A standby may get any rank.
int NodeOutput::standby_files() const {
  if (spec_.log_dir.empty()) return 0;
  const config::OutputSpec& output = spec_.output;
  return config::places_of(output, true, -1, -1).file | output.redirects.any() | output.tee.any();
}

void NodeOutput::flush() {
  for (const auto& folded : folded_) {
    if (folded) folded->flush();
  }
}

}  // namespace ddp::agent
