// Flags about the rendezvous: where the nodes meet, and this node's rank and address.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <utility>

#include "launcher/flags/flag_reader.h"
#include "launcher/flags/flag_values.h"

namespace ddp::flags {
namespace {

constexpr int kDefaultRendezvousPort = 29400;
constexpr int kDefaultMasterPort = 29500;
constexpr int kMaxReplicas = 7;
constexpr std::size_t kMaxJobName = 128;
constexpr int kMaxNodeRank = 999'999;

void set_endpoint(FlagReader& reader, Options& options, const std::string& flag,
                  HostPort endpoint) {
  options.endpoint_flag = reader.find(flag)->shown;
  options.endpoint = std::move(endpoint);
}

// Whether the backend chooses the ranks. As in torchrun, every backend that is named does so,
// except static.
bool ranks_are_the_backends(const FlagReader& reader) {
  const GivenFlag* backend = reader.find("rdzv-backend");
  return backend != nullptr && backend->value != "static";
}

void read_backend(FlagReader& reader, Options& options) {
  const GivenFlag* given = reader.find("rdzv-backend");
  if (given == nullptr || given->value == "c10d" || given->value == "static") return;
  if (given->value != "etcd" && given->value != "etcd-v2") {
    return reader.wrong(
        given->shown,
        "the backends are c10d and static, which both mean ddp-run's own rendezvous, and etcd");
  }
  options.etcd.emplace();
  if (given->value == "etcd-v2") {
    options.warnings.push_back(
        fmt::format("{}: treated as etcd; ddp-run uses version 3 of etcd's API and keys of its own",
                    given->shown));
  }
}

void read_etcd_endpoints(FlagReader& reader, Options& options) {
  if (auto endpoints = reader.value<std::vector<HostPort>>("rdzv-endpoint", parse_etcd_endpoints)) {
    set_endpoint(reader, options, "rdzv-endpoint", endpoints->front());
    options.etcd->endpoints = std::move(*endpoints);
  }
}

bool is_named_c10d(const FlagReader& reader) {
  const GivenFlag* backend = reader.find("rdzv-backend");
  return backend != nullptr && backend->value == "c10d";
}

// Without blanks and in lower case, since torchrun ignores both.
std::string plain_word(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// As in torchrun, only the backend c10d has store types.
bool meets_in_file(const FlagReader& reader) {
  const GivenFlag* conf = reader.find("rdzv-conf");
  if (conf == nullptr || !is_named_c10d(reader)) return false;
  const auto pairs = parse_pairs(conf->value);
  return pairs && std::any_of(pairs->begin(), pairs->end(), [](const auto& pair) {
           return pair.first == "store_type" && plain_word(pair.second) == "file";
         });
}

// torchrun makes a file of its own if none is named. That helps one node only, so several nodes
// need a name here.
void read_meeting_file(FlagReader& reader, Options& options) {
  const GivenFlag* given = reader.find("rdzv-endpoint");
  const std::string& shown = reader.find("rdzv-conf")->shown;
  if (reader.has("hosts") || reader.has("hostfile"))
    return reader.wrong(shown, "nodes of --hosts meet at this ddp-run; leave store_type=file out");
  if (given != nullptr && !given->value.empty()) {
    options.meeting_file = given->value;
    options.endpoint_flag = given->shown;
  } else if (options.spec.rules.max_nodes > 1) {
    reader.wrong(shown,
                 "with store_type=file, --rdzv-endpoint names a file that all nodes share, for "
                 "example --rdzv-endpoint /shared/job7.rdzv");
  }
}

void read_endpoint(FlagReader& reader, Options& options) {
  const auto master_port = reader.value<int>(
      "master-port", [](const std::string& text) { return parse_integer(text, 0, 65535); });
  if (options.standalone)
    return;  // As in torchrun, it overrides every flag that names an endpoint.
  read_backend(reader, options);
  if (options.etcd) return read_etcd_endpoints(reader, options);
  if (meets_in_file(reader)) return read_meeting_file(reader, options);
  if (auto endpoint = reader.value<HostPort>("rdzv-endpoint", [](const std::string& text) {
        return parse_endpoint(text, kDefaultRendezvousPort);
      })) {
    set_endpoint(reader, options, "rdzv-endpoint", std::move(*endpoint));
  } else if (const GivenFlag* given = reader.find("master-addr");
             given != nullptr && !reader.error()) {
    auto host = parse_host(given->value);
    if (!host) return reader.wrong(given->shown, "{}", host.error().message);
    set_endpoint(reader, options, "master-addr",
                 HostPort{std::move(*host), master_port.value_or(kDefaultMasterPort)});
    options.endpoint_is_master = !ranks_are_the_backends(reader);
  } else if (master_port && options.spec.rules.max_nodes == 1) {
    set_endpoint(reader, options, "master-port", HostPort{"127.0.0.1", *master_port});
  }
}

bool read_etcd_key(FlagReader& reader, Options& options, const GivenFlag& given,
                   const std::string& key, const std::string& text) {
  if (!options.etcd) return false;
  const auto taken = take_etcd_key(key, text, *options.etcd);
  if (!taken) reader.wrong(given.shown, "{}", taken.error().message);
  return !taken || *taken;
}

// A silent node is lost after so many of its intervals, with torchrun's defaults. --lease, which is
// read later, wins.
struct KeepAlive {
  std::optional<int> interval_s;
  std::optional<int> attempts;
};

bool read_keep_alive(FlagReader& reader, KeepAlive& keep_alive, const GivenFlag& given,
                     const std::string& key, const std::string& text) {
  const bool is_interval = key == "keep_alive_interval";
  if (!is_interval && key != "keep_alive_max_attempt") return false;
  const auto number = parse_integer(text, 1, 1'000'000);
  if (!number) {
    reader.wrong(given.shown, "{}={} is {}", key, text, number.error().message);
  } else {
    (is_interval ? keep_alive.interval_s : keep_alive.attempts) = *number;
  }
  return true;
}

void settle_keep_alive(FlagReader& reader, Options& options, const GivenFlag& given,
                       const KeepAlive& keep_alive) {
  if (!keep_alive.interval_s && !keep_alive.attempts) return;
  const auto lease = check_lease(std::int64_t{1'000} * keep_alive.interval_s.value_or(5) *
                                 keep_alive.attempts.value_or(3));
  if (lease) {
    options.spec.rules.lease_ms = *lease;
  } else {
    reader.wrong(given.shown, "keep_alive_interval times keep_alive_max_attempt is {}",
                 lease.error().message);
  }
}

void read_conf(FlagReader& reader, Options& options, const GivenFlag& given) {
  const auto pairs = parse_pairs(given.value);
  if (!pairs) return reader.wrong(given.shown, "{}", pairs.error().message);
  std::optional<std::int64_t> timeout;
  std::optional<std::int64_t> join_timeout;
  KeepAlive keep_alive;
  const bool rank_is_given = reader.has("node-rank");
  for (const auto& [key, text] : *pairs) {
    if (key == "is_host" && !options.etcd) {
      const auto is_host = parse_boolean(text);
      if (!is_host)
        return reader.wrong(given.shown, "is_host={} is {}", text, is_host.error().message);
      options.is_host = *is_host;
    } else if (key == "rank") {
      const auto rank = parse_integer(text, 0, kMaxNodeRank);
      if (!rank) return reader.wrong(given.shown, "rank={} is {}", text, rank.error().message);
      if (!rank_is_given) options.spec.node_rank = *rank;
    } else if (key == "store_type") {
      const std::string type = plain_word(text);
      if (type == "tcp" || (type == "file" && (options.standalone || is_named_c10d(reader))))
        continue;
      return reader.wrong(given.shown,
                          "store_type={}: the values are tcp and, with --rdzv-backend c10d, file",
                          text);
    } else if (key == "join_timeout" || key == "timeout" || key == "last_call_timeout") {
      const auto limit = parse_seconds(text, key == "last_call_timeout");
      if (!limit) return reader.wrong(given.shown, "{}={} is {}", key, text, limit.error().message);
      if (key == "join_timeout") join_timeout = *limit;
      if (key == "timeout") timeout = *limit;
      if (key == "last_call_timeout") options.spec.rules.last_call_ms = *limit;
    } else if (!read_keep_alive(reader, keep_alive, given, key, text) &&
               !read_etcd_key(reader, options, given, key, text)) {
      options.warnings.push_back(fmt::format(
          "{}: the key {} has no effect; the keys that have one are join_timeout, "
          "last_call_timeout, timeout, keep_alive_interval, keep_alive_max_attempt, rank, {}",
          given.shown, key, options.etcd ? "protocol, cacert, cert, key, etcd_prefix" : "is_host"));
    }
  }
  settle_keep_alive(reader, options, given, keep_alive);
  if (timeout) options.spec.rules.join_timeout_ms = *timeout;
  if (join_timeout) options.spec.rules.join_timeout_ms = *join_timeout;
}

// Decides what becomes of a rank from a flag, as torchrun does: --standalone ignores it, and a
// backend that chooses ranks takes it as a preference.
void settle_node_rank(FlagReader& reader, Options& options) {
  if (options.spec.node_rank < 0 || options.node_rank_is_schedulers) return;
  if (options.standalone) {
    options.spec.node_rank = -1;
    return;
  }
  options.spec.node_rank_is_wish = ranks_are_the_backends(reader);
  // As torchrun's backend static, for which rank 0 is the server whatever the endpoint's name
  // means.
  if (options.endpoint && !options.spec.node_rank_is_wish) options.endpoint_is_master = true;
  if (!options.spec.node_rank_is_wish || options.spec.node_rank < options.spec.rules.max_nodes)
    return;
  options.warnings.push_back(
      fmt::format("{}: ranks of {} nodes go from 0 to {}; {} chooses a rank for this node",
                  reader.find(reader.has("node-rank") ? "node-rank" : "rdzv-conf")->shown,
                  options.spec.rules.max_nodes, options.spec.rules.max_nodes - 1,
                  reader.find("rdzv-backend")->shown));
  options.spec.node_rank = -1;
  options.spec.node_rank_is_wish = false;
}

void read_node(FlagReader& reader, Options& options) {
  reader.take(
      "node-rank", [](const std::string& text) { return parse_integer(text, -1, kMaxNodeRank); },
      options.spec.node_rank);
  settle_node_rank(reader, options);
  if (const GivenFlag* given = reader.find("local-addr"); given != nullptr)
    options.spec.local_addr = given->value;
}

void check_etcd(FlagReader& reader, const Options& options) {
  const std::string shown = reader.find("rdzv-backend")->shown;
  if (options.etcd->endpoints.empty()) {
    reader.wrong(shown,
                 "--rdzv-endpoint is missing; name the cluster's client ports, for example "
                 "--rdzv-endpoint etcd0:2379,etcd1:2379");
  } else if (!options.job_id) {
    reader.wrong(shown,
                 "--rdzv-id is missing; it tells apart the jobs that share a cluster, for example "
                 "--rdzv-id mnist-7");
  }
}

void check_nodes(FlagReader& reader, const Options& options) {
  if (options.spec.rules.max_nodes > 1 && options.host_list.empty()) {
    const GivenFlag* given = reader.find("nnodes");
    const std::string shown = given != nullptr ? given->shown : "the scheduler's nodes";
    if (options.standalone) {
      reader.wrong(shown, "contradicts --standalone, which is one node; leave one of them out");
    } else if (!options.endpoint && options.step_ports.empty() && options.meeting_file.empty() &&
               !options.placement && !reader.error()) {
      reader.wrong(
          shown,
          "--rdzv-endpoint is missing; all nodes name the same one, for example --rdzv-endpoint "
          "node0:29400");
    } else if (options.endpoint && options.endpoint->port == 0) {
      reader.wrong(options.endpoint_flag,
                   "port 0 cannot be found by other nodes; write a port, for example {}:29400",
                   options.endpoint->host);
    }
  }
  if (options.spec.node_rank >= options.spec.rules.max_nodes) {
    const GivenFlag* given = reader.find(reader.has("node-rank") ? "node-rank" : "rdzv-conf");
    reader.wrong(given->shown, "ranks of {} nodes go from 0 to {}", options.spec.rules.max_nodes,
                 options.spec.rules.max_nodes - 1);
  }
}

void read_replicas(FlagReader& reader, Options& options) {
  options.replicas = reader.value<int>("rdzv-replicas", [](const std::string& text) {
    return parse_integer(text, 1, kMaxReplicas);
  });
  if (!options.replicas) return;
  const std::string& shown = reader.find("rdzv-replicas")->shown;
  if (*options.replicas % 2 == 0) {
    reader.wrong(shown, "an even number of replicas bears no more losses than one less; write {}",
                 *options.replicas - 1);
  }
  if (options.etcd) reader.wrong(shown, "with --rdzv-backend etcd, etcd keeps the job's record");
}

}  // namespace

void read_rendezvous_flags(FlagReader& reader, Options& options) {
  read_endpoint(reader, options);
  if (const GivenFlag* given = reader.find("rdzv-id"); given != nullptr) {
    if (given->value.size() > kMaxJobName || given->value.find('/') != std::string::npos) {
      reader.wrong(given->shown, "a job's name has 1 to {} characters and no /", kMaxJobName);
    }
    options.job_id = given->value;
  }
  if (const GivenFlag* given = reader.find("rdzv-conf"); given != nullptr)
    read_conf(reader, options, *given);
  read_replicas(reader, options);
  read_node(reader, options);
  if (options.etcd) check_etcd(reader, options);
  check_nodes(reader, options);
}

}  // namespace ddp::flags
