// Flags about starting a job on several machines: --hosts, --hostfile, --launch-agent and -x.
#include <algorithm>
#include <array>

#include "launcher/flags/flag_reader.h"
#include "launcher/flags/flag_table.h"
#include "launcher/flags/flag_values.h"

namespace ddp::flags {
namespace {

// Flags that are not passed on to the nodes: they learn these values by other means, or must not
// have them at all.
constexpr auto kNotForNodes = std::to_array<std::string_view>(
    {"hosts", "hostfile", "launch-agent", "export", "dry-run", "standalone", "nnodes", "node-rank",
     "rdzv-endpoint", "master-addr", "master-port", "rdzv-id", "local-addr", "rdzv-token-file"});

bool is_variable_name(std::string_view name) {
  return !name.empty() && name.find_first_of("= \t\n") == std::string_view::npos;
}

void read_hosts(FlagReader& reader, Options& options) {
  reader.take(
      "hosts", [](const std::string& text) { return hosts::parse_host_list(text); },
      options.host_list);
  const GivenFlag* file = reader.find("hostfile");
  if (file == nullptr) return;
  const auto more = hosts::read_hostfile(file->value);
  if (!more) return reader.wrong(file->shown, "{}", more.error().message);
  auto all = hosts::joined(std::move(options.host_list), *more);
  if (!all) return reader.wrong(file->shown, "{}", all.error().message);
  options.host_list = std::move(*all);
}

void read_exports(FlagReader& reader, Options& options) {
  const GivenFlag* given = reader.find("export");
  if (given == nullptr) return;
  for (const std::string& text : given->values) {
    const std::size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (!is_variable_name(name)) {
      return reader.wrong(given->shown, "not a variable name; write NAME or NAME=VALUE");
    }
    const char* here = reader.environment(name.c_str());
    if (equals != std::string::npos) {
      options.exports.emplace_back(name, text.substr(equals + 1));
    } else if (here != nullptr) {
      options.exports.emplace_back(name, here);
    } else {
      options.warnings.push_back(
          fmt::format("-x {}: it is not set here, so it is not passed on", name));
    }
  }
}

void check_node_count(FlagReader& reader, Options& options) {
  const int count = static_cast<int>(options.host_list.size());
  const GivenFlag* given = reader.find("nnodes");
  if (given == nullptr) {
    options.spec.rules.min_nodes = options.spec.rules.max_nodes = count;
  } else if (options.spec.rules.min_nodes > count) {
    reader.wrong(given->shown,
                 "there are {} hosts to run on; name more of them, or write --nnodes {}", count,
                 count);
  }
}

// The command line of each node's ddp-run.
std::vector<std::string> node_arguments(const CommandLine& line, bool with_etcd) {
  std::vector<std::string> arguments;
  for (const auto& [name, given] : line.flags) {
    const bool left_out =
        std::find(kNotForNodes.begin(), kNotForNodes.end(), name) != kNotForNodes.end();
    if (left_out && !(with_etcd && (name == "rdzv-endpoint" || name == "rdzv-id"))) continue;
    arguments.push_back("--" + name + (find_flag(name)->takes_value() ? "=" + given.value : ""));
  }
  arguments.emplace_back("--");
  arguments.push_back(line.program);
  arguments.insert(arguments.end(), line.arguments.begin(), line.arguments.end());
  return arguments;
}

}  // namespace

void read_host_flags(FlagReader& reader, Options& options) {
  read_hosts(reader, options);
  if (auto agent = reader.value<hosts::LaunchAgent>("launch-agent", hosts::LaunchAgent::parse)) {
    options.launch_agent = std::move(*agent);
  }
  read_exports(reader, options);
  if (reader.error()) return;
  if (options.host_list.empty()) {
    for (const char* name : {"launch-agent", "export"}) {
      if (const GivenFlag* given = reader.find(name)) {
        reader.wrong(given->shown,
                     "needs --hosts or --hostfile; add one, for example --hosts node0,node1");
      }
    }
    return;
  }
  const GivenFlag* named = reader.find(reader.has("hosts") ? "hosts" : "hostfile");
  if (options.standalone) {
    reader.wrong(
        named->shown,
        "contradicts --standalone, which runs on this machine only; leave one of them out");
  }
  if (reader.has("node-rank")) {
    reader.wrong(reader.find("node-rank")->shown, "the hosts' order gives the ranks; leave it out");
  }
  check_node_count(reader, options);
  const GivenFlag* backend = reader.find("rdzv-backend");
  const bool with_etcd = backend != nullptr && backend->value.starts_with("etcd");
  options.node_arguments = node_arguments(reader.line(), with_etcd);
}

}  // namespace ddp::flags
