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
    : spec_(spec),
      console_(std::move(console)),
      writer_(io, {.on_standing = [this](Duration stood) { tell_standing(stood); }}) {
  for (const int stream : kStreams) {
    this->console(stream).set_stall_limit(Console::kStallLimit, stall_advice(spec));
  }
}

void NodeOutput::tell_standing(Duration stood) const {
  console_.err->print(fmt::format(
      "ddp-run: --log-dir: the disk has not answered for {} s on {}; workers that write "
      "much will wait for it",
      stood.count() / 1'000, spec_.host));
}

FileWriter::OnFailure NodeOutput::log_trouble(const std::string& what) const {
  return [console = console_.err, what](const FileWriter::Failure& failure) {
    console->print(fmt::format("ddp-run: --log-dir: {}: {}", what, failure.why));
  };
}

void NodeOutput::begin_round(const wire::RoundStart& round) {
  for (const int stream : kStreams) open_filtered(round, stream);
}

void NodeOutput::open_filtered(const wire::RoundStart& round, int stream) {
  const config::OutputSpec& output = spec_.output;
  const auto& texts = stream == config::kStdout ? output.stdout_filters : output.stderr_filters;
  if (spec_.log_dir.empty() || texts.empty()) return;
  const std::string path = filtered_log_path(spec_, round.round, round.group_rank, stream);
  filtered_[index(stream)] = std::make_shared<FilteredLog>(
      writer_.open([path] { return open_log_file(path); },
                   log_trouble("the file of filtered lines cannot be written")),
      texts);
}

LinePrefix NodeOutput::prefix_of(const std::string& rank, const std::string& local_rank,
                                 const std::string& node_rank) const {
  return LinePrefix(
      spec_.output.has_prefix ? std::string_view(spec_.output.prefix) : LinePrefix::kDefault,
      {spec_.role, rank, local_rank, spec_.host, node_rank});
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
  const bool has_prefix =
      round.world_size > 1 || spec_.single_node_prefix || spec_.output.has_prefix;
  route.whole_lines = has_prefix || spec_.output.whole_lines;
  route.filtered = filtered_[index(stream)];
  if (!has_prefix) return route;
  route.prefix = prefix_of(std::to_string(rank_of(round, local_rank)), std::to_string(local_rank),
                           std::to_string(round.group_rank));
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

}  // namespace ddp::agent
