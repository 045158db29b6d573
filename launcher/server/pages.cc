#include "launcher/server/pages.h"

#include <array>
#include <limits>
#include <string>

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "launcher/server/metrics_text.h"

namespace ddp::server {
namespace {

using rendezvous::JobStatus;
using rendezvous::NodeStatus;

constexpr std::array<const char*, 5> kStates{"waiting", "running", "recovering", "stopping",
                                             "finished"};

void add_daemon(const DaemonFacts& facts, MetricsText& out) {
  out.single("ddp_jobs_running", "gauge", "Jobs that have begun a round and are not over.",
             facts.running_jobs);
  out.single("ddp_jobs_finished_total", "counter", "Jobs that are over.", facts.finished_jobs);
  out.single("ddp_rounds_total", "counter", "Rounds begun by all jobs.", facts.rounds);
  out.single("ddp_agents", "gauge", "Agents connected.", facts.agents);
  out.single("ddp_connections", "gauge", "Open connections of all kinds.", facts.connections);
  out.single("ddp_connections_turned_away_total", "counter",
             "Connections beyond --max-connections.", facts.turned_away);
  out.family("ddp_refused_total", "counter", "Connections that were not let in.");
  for (std::size_t i = 0; i < kRefusalCount; ++i) {
    out.sample({{"reason", label_of(static_cast<RefusalReason>(i))}}, facts.refused[i]);
  }
}

void add_store(const StoreFigures& store, MetricsText& out) {
  out.single("ddp_store_keys", "gauge", "Keys in the store.", store.keys);
  out.single("ddp_store_bytes", "gauge", "Bytes of all keys and values.", store.bytes);
  out.single("ddp_store_connections", "gauge", "Store clients connected.", store.connections);
  out.single("ddp_store_waits", "gauge", "Store clients that wait for keys.", store.waits);
  out.single("ddp_store_received_bytes_total", "counter", "Bytes of requests received.",
             store.received_bytes);
  out.single("ddp_store_requests_total", "counter", "Store requests served.", store.all_requests());
  out.family("ddp_store_operations_total", "counter", "Store requests served, by operation.");
  for (std::size_t op = 0; op < store.requests.size(); ++op) {
    if (store.requests[op] == 0) continue;
    out.sample({{"op", wire::c10d::op_name(static_cast<wire::c10d::Op>(op))}}, store.requests[op]);
  }
}

// One family after another, each with all jobs, because the format wants a family's samples
// together.
void add_jobs(const std::vector<JobStatus>& jobs, MetricsText& out) {
  const auto gauge = [&](const char* name, const char* help, auto value) {
    out.family(name, "gauge", help);
    for (const JobStatus& job : jobs) out.sample({{"job", job.job_id}}, value(job));
  };
  out.family("ddp_job_state", "gauge", "1 for the state that the job is in, 0 for the others.");
  for (const JobStatus& job : jobs) {
    for (const char* state : kStates) {
      out.sample({{"job", job.job_id}, {"state", state}}, job.state == state ? 1 : 0);
    }
  }
  gauge("ddp_job_round", "The job's round, from 0; -1 before the first.",
        [](const JobStatus& job) { return job.round; });
  gauge("ddp_job_world_size", "Workers in the round; 0 while none runs.",
        [](const JobStatus& job) { return job.world_size; });
  gauge("ddp_job_nodes", "Nodes of the job that are connected.", [](const JobStatus& job) {
    int connected = 0;
    for (const NodeStatus& node : job.nodes) connected += node.connected() ? 1 : 0;
    return connected;
  });
  gauge("ddp_job_min_nodes", "Nodes that a round needs.",
        [](const JobStatus& job) { return job.min_nodes; });
  gauge("ddp_job_max_nodes", "Nodes that a round takes.",
        [](const JobStatus& job) { return job.max_nodes; });
  gauge("ddp_job_max_restarts", "The restart budget of the whole job.",
        [](const JobStatus& job) { return job.max_restarts; });
  gauge("ddp_job_best_step", "The largest step that was ever reported; -1: none.",
        [](const JobStatus& job) { return job.best_step; });
  out.family("ddp_job_restarts_total", "counter", "Restarts charged to the budget.");
  for (const JobStatus& job : jobs) out.sample({{"job", job.job_id}}, job.restarts);
  out.family("ddp_job_failures_total", "counter", "Failures of workers and nodes reported.");
  for (const JobStatus& job : jobs) out.sample({{"job", job.job_id}}, job.failures);
  out.family("ddp_job_exit_code", "gauge", "Exit status of a job that is over.");
  for (const JobStatus& job : jobs) {
    if (job.exit_code) out.sample({{"job", job.job_id}}, *job.exit_code);
  }
}

void add_late_ranks(const std::vector<JobStatus>& jobs, MetricsText& out) {
  const auto gauge = [&](const char* name, const char* help, auto value) {
    out.family(name, "gauge", help);
    for (const JobStatus& job : jobs) {
      for (const rendezvous::LateStatus& late : job.late) {
        const std::string rank = std::to_string(late.rank);
        out.sample({{"job", job.job_id}, {"rank", rank}, {"host", late.host}}, value(late));
      }
    }
  };
  gauge("ddp_rank_late_seconds", "For ranks that are late: for how long.",
        [](const rendezvous::LateStatus& late) {
          return static_cast<double>(late.since.count()) / 1'000;
        });
  gauge("ddp_rank_late_ratio",
        "For ranks that are late: how many times as long they compute a step as the others.",
        [](const rendezvous::LateStatus& late) { return late.computes_ms / late.others_ms; });
}

void add_nodes(const std::vector<JobStatus>& jobs, MetricsText& out) {
  const auto gauge = [&](const char* name, const char* help, auto value) {
    out.family(name, "gauge", help);
    for (const JobStatus& job : jobs) {
      for (const NodeStatus& node : job.nodes) {
        if (!node.connected() || job.exit_code) continue;
        out.sample({{"job", job.job_id}, {"node", node.node_id}, {"host", node.host}}, value(node));
      }
    }
  };
  gauge("ddp_node_workers", "Workers of the node.",
        [](const NodeStatus& node) { return node.nproc; });
  gauge("ddp_node_group_rank", "The node's rank among the nodes of the round; -1: not in it.",
        [](const NodeStatus& node) { return node.group_rank; });
  gauge("ddp_node_silence_seconds", "Time since the node's last message.",
        [](const NodeStatus& node) { return static_cast<double>(node.silent.count()) / 1'000; });
  gauge("ddp_node_step", "Largest step of the round that its workers have reported; -1: none.",
        [](const NodeStatus& node) { return node.step; });
  gauge("ddp_node_steps_per_second", "Steps per second over the last second or more.",
        [](const NodeStatus& node) { return node.steps_per_second; });
  gauge("ddp_node_total_steps", "Steps of the whole training, if its first worker reports them.",
        [](const NodeStatus& node) {
          return node.total_steps > 0 ? static_cast<double>(node.total_steps)
                                      : std::numeric_limits<double>::quiet_NaN();
        });
  gauge("ddp_node_eta_seconds", "Time until the last of them, at that speed.",
        [](const NodeStatus& node) { return node.eta_seconds; });
  gauge("ddp_node_loss", "As its first worker reports it.",
        [](const NodeStatus& node) { return node.loss; });
  gauge("ddp_node_samples_per_second", "As its first worker reports it.",
        [](const NodeStatus& node) { return node.samples_per_second; });
}

}  // namespace

std::string status_page(const DaemonFacts& facts) {
  nlohmann::json page{{"jobs", nlohmann::json::array()},
                      {"store",
                       {{"keys", facts.store.keys},
                        {"bytes", facts.store.bytes},
                        {"connections", facts.store.connections},
                        {"waits", facts.store.waits},
                        {"requests", facts.store.all_requests()}}},
                      {"agents", facts.agents},
                      {"connections", facts.connections},
                      {"refused", nlohmann::json::object()}};
  for (std::size_t i = 0; i < kRefusalCount; ++i) {
    if (facts.refused[i] == 0) continue;
    page["refused"][std::string(label_of(static_cast<RefusalReason>(i)))] = facts.refused[i];
  }
  for (const JobStatus& job : facts.jobs) page["jobs"].push_back(rendezvous::to_json(job));
  // Names come from agents and need not be UTF-8.
  return dump_json(page, 2) + "\n";
}

std::string history_page(const nlohmann::json& jobs) {
  const nlohmann::json page{{"jobs", jobs}};
  return dump_json(page) + "\n";
}

std::string metrics_page(const DaemonFacts& facts) {
  MetricsText out;
  add_daemon(facts, out);
  add_jobs(facts.jobs, out);
  add_nodes(facts.jobs, out);
  add_late_ranks(facts.jobs, out);
  add_store(facts.store, out);
  return out.text();
}

}  // namespace ddp::server
