#include "launcher/ddp_run/flags.h"

#include <utility>

#include "launcher/ddp_run/command_line.h"
#include "launcher/ddp_run/exit_error.h"
#include "launcher/ddp_run/flag_values.h"

namespace ddp::run {
namespace {

constexpr int kDefaultRendezvousPort = 29400;
constexpr int kDefaultMasterPort = 29500;

template <typename... Args>
Error invalid(const std::string& shown, fmt::format_string<Args...> format, Args&&... args) {
  return exit_error(kExitInvalidValue, "{}: {}", shown,
                    fmt::format(format, std::forward<Args>(args)...));
}

// Turns the given flags into Options one after the other and keeps the first error.
class Reader {
 public:
  Reader(const CommandLine& line, const GetEnvironment& environment)
      : line_(line), environment_(environment) {}

  Result<Options> read() {
    read_size();
    read_endpoint();
    read_rendezvous();
    read_limits();
    read_output();
    read_program();
    read_accepted();
    check_together();
    if (error_) return *error_;
    return std::move(options_);
  }

 private:
  void read_size() {
    options_.standalone = has("standalone");
    if (auto range = value<std::pair<int, int>>("nnodes", parse_node_range)) {
      std::tie(options_.min_nodes, options_.max_nodes) = *range;
    }
    if (auto count = value<ProcessCount>("nproc-per-node", parse_process_count))
      options_.nproc = *count;
  }

  void read_endpoint() {
    auto master_port = value<int>(
        "master-port", [](const std::string& text) { return parse_integer(text, 0, 65535); });
    if (options_.standalone) return;  // As in torchrun, it overrides what else names an endpoint.
    read_backend();
    if (options_.etcd) return read_etcd_endpoints();
    if (auto endpoint = value<Endpoint>("rdzv-endpoint", [](const std::string& text) {
          return parse_endpoint(text, kDefaultRendezvousPort);
        })) {
      set_endpoint("rdzv-endpoint", std::move(*endpoint));
    } else if (const GivenFlag* given = line_.find("master-addr"); given != nullptr && !error_) {
      auto address = parse_endpoint(given->value, 0);
      if (!address || address->port != 0) {
        fail(invalid(given->shown, "not a host name or address; the port goes into --master-port"));
        return;
      }
      set_endpoint("master-addr",
                   Endpoint{address->host, master_port.value_or(kDefaultMasterPort)});
    } else if (master_port && options_.max_nodes == 1) {
      set_endpoint("master-port", Endpoint{"127.0.0.1", *master_port});
    }
  }

  void read_backend() {
    const GivenFlag* given = line_.find("rdzv-backend");
    if (given == nullptr || given->value == "c10d" || given->value == "static") return;
    if (given->value != "etcd" && given->value != "etcd-v2") {
      return fail(invalid(given->shown,
                          "there are c10d and static, which both mean ddp-run's own rendezvous, "
                          "and etcd"));
    }
    options_.etcd.emplace();
    if (given->value == "etcd-v2") {
      options_.warnings.push_back(fmt::format(
          "{}: taken for etcd; ddp-run speaks version 3 of etcd's API, and its own keys",
          given->shown));
    }
  }

  void read_etcd_endpoints() {
    if (auto endpoints = value<std::vector<Endpoint>>("rdzv-endpoint", parse_etcd_endpoints)) {
      set_endpoint("rdzv-endpoint", endpoints->front());
      options_.etcd->endpoints = std::move(*endpoints);
    }
  }

  void set_endpoint(const std::string& flag, Endpoint endpoint) {
    options_.endpoint_flag = line_.find(flag)->shown;
    options_.endpoint = std::move(endpoint);
  }

  void read_rendezvous() {
    if (const GivenFlag* given = line_.find("rdzv-id"); given != nullptr) {
      if (given->value.empty() || given->value.size() > 128 ||
          given->value.find('/') != std::string::npos) {
        fail(invalid(given->shown, "a job's name has 1 to 128 characters and no /"));
      }
      options_.job_id = given->value;
    }
    if (const GivenFlag* given = line_.find("rdzv-conf"); given != nullptr)
      read_rendezvous_conf(*given);
    if (auto rank = value<int>("node-rank", [](const std::string& text) {
          return parse_integer(text, -1, 999'999);
        })) {
      options_.node_rank = *rank;
    } else if (!has("node-rank")) {
      take_slurms_node_rank();
    }
    if (const GivenFlag* given = line_.find("local-addr"); given != nullptr) {
      if (given->value.empty())
        fail(invalid(given->shown, "the address is empty; write for example 10.0.0.7"));
      options_.local_addr = given->value;
    }
  }

  // SLURM numbers the nodes of a step along its topology. Only where there is one ddp-run a node.
  void take_slurms_node_rank() {
    const char* rank = environment_("SLURM_NODEID");
    const char* nodes = environment_("SLURM_STEP_NUM_NODES");
    const char* tasks = environment_("SLURM_STEP_NUM_TASKS");
    if (rank == nullptr || nodes == nullptr || tasks == nullptr) return;
    if (options_.max_nodes == 1 || std::string_view(nodes) != tasks) return;
    const auto number = parse_integer(rank, 0, options_.max_nodes - 1);
    if (!number) return;  // More nodes than the job takes: spares have no rank.
    options_.node_rank = *number;
    options_.node_rank_is_slurms = true;
  }

  void read_rendezvous_conf(const GivenFlag& given) {
    const auto pairs = parse_pairs(given.value);
    if (!pairs) return fail(invalid(given.shown, "{}", pairs.error().message));
    std::optional<std::int64_t> timeout;
    std::optional<std::int64_t> join_timeout;
    for (const auto& [key, text] : *pairs) {
      if (key == "is_host" && !options_.etcd) {
        const auto is_host = parse_boolean(text);
        if (!is_host)
          return fail(invalid(given.shown, "is_host={} is {}", text, is_host.error().message));
        options_.is_host = *is_host;
      } else if (key == "join_timeout" || key == "timeout" || key == "last_call_timeout") {
        const auto limit = parse_seconds(text, key == "last_call_timeout");
        if (!limit)
          return fail(invalid(given.shown, "{}={} is {}", key, text, limit.error().message));
        if (key == "join_timeout") join_timeout = *limit;
        if (key == "timeout") timeout = *limit;
        if (key == "last_call_timeout") options_.last_call_ms = *limit;
      } else if (!read_etcd_key(given, key, text)) {
        options_.warnings.push_back(
            fmt::format("{}: the key {} has no effect; those with one are join_timeout, "
                        "last_call_timeout, timeout, {}",
                        given.shown, key,
                        options_.etcd ? "protocol, cacert, cert, key, etcd_prefix" : "is_host"));
      }
    }
    if (timeout) options_.join_timeout_ms = *timeout;
    if (join_timeout) options_.join_timeout_ms = *join_timeout;
  }

  bool read_etcd_key(const GivenFlag& given, const std::string& key, const std::string& text) {
    if (!options_.etcd) return false;
    const auto taken = take_etcd_key(key, text, *options_.etcd);
    if (!taken) fail(invalid(given.shown, "{}", taken.error().message));
    return !taken || *taken;
  }

  void read_limits() {
    const auto seconds = [](const std::string& text) { return parse_seconds(text, false); };
    const auto seconds_or_none = [](const std::string& text) { return parse_seconds(text, true); };
    if (auto n = value<int>("max-restarts", [](const std::string& text) {
          return parse_integer(text, 0, 1'000'000);
        })) {
      options_.max_restarts = *n;
    }
    options_.restart_on_start_failure = has("restart-on-start-failure");
    if (auto n = value<int>("max-no-progress", [](const std::string& text) {
          return parse_integer(text, 0, 1'000'000);
        })) {
      options_.max_no_progress = *n;
    }
    if (auto n = value<int>(
            "standby", [](const std::string& text) { return parse_integer(text, 0, 1'024); })) {
      options_.standby = *n;
    }
    if (auto ms = value<std::int64_t>("progress-timeout", seconds_or_none))
      options_.progress_timeout_ms = *ms;
    if (auto ms = value<std::int64_t>("scale-up-timeout", seconds_or_none))
      options_.scale_up_ms = *ms;
    if (auto ms = value<std::int64_t>("last-call", seconds_or_none)) options_.last_call_ms = *ms;
    if (auto ms = value<std::int64_t>("join-timeout", seconds)) options_.join_timeout_ms = *ms;
    if (auto ms = value<std::int64_t>("coordinator-timeout", seconds_or_none))
      options_.coordinator_timeout_ms = *ms;
    if (auto ms = value<std::int64_t>("shutdown-timeout", seconds_or_none)) {
      options_.stop_timeout_ms = *ms;
    } else if (const char* text = environment_("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"); text != nullptr) {
      const auto limit = parse_seconds(text, true);
      if (!limit) {
        return fail(invalid(fmt::format("TORCH_ELASTIC_SHUTDOWN_TIMEOUT={}", text), "{}",
                            limit.error().message));
      }
      options_.stop_timeout_ms = *limit;
    }
  }

  void read_output() {
    if (const GivenFlag* given = line_.find("log-dir");
        given != nullptr && given->value != "/dev/null") {
      if (given->value.empty())
        fail(invalid(given->shown, "the folder is empty; write for example --log-dir logs"));
      options_.log_dir = given->value;
    }
    if (const GivenFlag* given = line_.find("role"); given != nullptr) {
      if (given->value.empty()) fail(invalid(given->shown, "the name is empty"));
      options_.role = given->value;
    }
  }

  void read_program() {
    options_.module = has("module");
    options_.no_python = has("no-python");
    if (options_.module && options_.no_python) {
      fail(invalid("--module with --no-python", "a module needs Python; leave one of them out"));
    }
    if (const char* python = environment_("PYTHON_EXEC"); python != nullptr && *python != '\0') {
      options_.python = python;
    }
    if (!line_.has_program) {
      return fail(exit_error(
          kExitUsage,
          "no program to run; write for example: ddp-run --standalone --nproc-per-node 2 "
          "train.py. --help lists all flags"));
    }
    if (line_.program.empty())
      return fail(exit_error(kExitUsage, "the program's name is empty; --help lists all flags"));
    options_.program = line_.program;
    options_.arguments = line_.arguments;
  }

  void read_accepted() {
    value<std::int64_t>("monitor-interval",
                        [](const std::string& text) { return parse_seconds(text, true); });
    if (const GivenFlag* given = line_.find("start-method");
        given != nullptr && given->value != "spawn" && given->value != "fork" &&
        given->value != "forkserver") {
      fail(invalid(given->shown, "there are spawn, fork and forkserver"));
    }
    for (const char* name : {"redirects", "tee"}) {
      const GivenFlag* given = line_.find(name);
      if (given != nullptr && given->value != "0") {
        fail(invalid(
            given->shown,
            "not supported; --log-dir DIR writes every worker's output to files and leaves it "
            "on the console"));
      }
    }
  }

  void check_etcd() {
    const std::string shown = line_.find("rdzv-backend")->shown;
    if (options_.etcd->endpoints.empty()) {
      fail(invalid(shown,
                   "--rdzv-endpoint is missing; name the cluster's client ports, for example "
                   "--rdzv-endpoint etcd0:2379,etcd1:2379"));
    } else if (!options_.job_id) {
      fail(invalid(shown,
                   "--rdzv-id is missing; jobs that share a cluster are told apart by it, for "
                   "example --rdzv-id mnist-7"));
    }
  }

  void check_together() {
    if (options_.etcd) check_etcd();
    if (options_.max_nodes > 1) {
      const std::string shown = line_.find("nnodes")->shown;
      if (options_.standalone) {
        fail(invalid(shown, "contradicts --standalone, which is one node; leave one of them out"));
      } else if (!options_.endpoint) {
        fail(invalid(
            shown,
            "--rdzv-endpoint is missing; all nodes name the same one, for example --rdzv-endpoint "
            "node0:29400"));
      } else if (options_.endpoint->port == 0) {
        fail(invalid(options_.endpoint_flag,
                     "port 0 cannot be found by other nodes; write a port, for example {}:29400",
                     options_.endpoint->host));
      }
    }
    if (options_.node_rank >= options_.max_nodes) {
      fail(invalid(line_.find("node-rank")->shown, "ranks of {} nodes go from 0 to {}",
                   options_.max_nodes, options_.max_nodes - 1));
    }
  }

  bool has(std::string_view name) const { return line_.find(name) != nullptr; }

  // The flag's value as `parse` reads it; nothing if it was not given or is wrong.
  template <typename T, typename Parse>
  std::optional<T> value(std::string_view name, Parse parse) {
    const GivenFlag* given = line_.find(name);
    if (given == nullptr) return std::nullopt;
    Result<T> parsed = parse(given->value);
    if (parsed) return std::move(*parsed);
    fail(invalid(given->shown, "{}", parsed.error().message));
    return std::nullopt;
  }

  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }

  const CommandLine& line_;
  const GetEnvironment& environment_;
  Options options_;
  std::optional<Error> error_;
};

}  // namespace

Result<Options> parse_flags(const std::vector<std::string>& arguments,
                            const GetEnvironment& environment) {
  const auto line = split_command_line(arguments, environment);
  if (!line) return line.error();
  Options options;
  options.help = line->find("help") != nullptr;
  options.version = line->find("version") != nullptr;
  if (options.help || options.version) return options;
  return Reader(*line, environment).read();
}

}  // namespace ddp::run
