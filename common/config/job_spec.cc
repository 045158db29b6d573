#include "common/config/job_spec.h"

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"

namespace ddp {

// In this namespace, so that argument-dependent lookup finds them. Only the agent reads what they
// write.
static void to_json(nlohmann::json& json, const Secret& secret) { json = secret.reveal(); }
static void from_json(const nlohmann::json& json, Secret& secret) {
  secret = Secret(json.get<std::string>());
}

namespace config {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(TlsFiles, certificate, key, ca)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RankSet::Range, first, last)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RankSet, ranges)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(StreamMap::Entry, ranks, streams, global)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(StreamMap, others, entries)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(OutputSpec, redirects, tee, local_ranks, ranks,
                                                stdout_filters, stderr_filters, has_prefix, prefix,
                                                status_line, whole_lines)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(
    JobSpec, job_id, node_id, host, local_addr, node_rank, node_rank_is_wish, coordinator_host,
    coordinator_port, replica_port, unfit, rdzv_token, tls, tls_name, any_user, rules,
    expected_hosts, nproc, coordinator_timeout_ms, progress_timeout_ms, uninterruptible_ms, standby,
    exit_barrier_ms, signals, checkpoint_signal, signals_to_handle, program, command, python,
    own_store, role, usable_cores, devices, virtual_local_rank, numa_binding, event_log, log_dir,
    single_node_prefix, notices, output, in_tasks, successor, checkpoint_at_ms,
    signals_from_launcher, dry_run, dry_run_workers, tells_waiting)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(AgentResult, exit_code, summary, report, error,
                                                last_round, restarts, has_checkpoint, at_time_limit)

namespace {

// CBOR (RFC 8949) and not JSON: arguments and paths are bytes, which need not be UTF-8.
template <typename T>
std::string dump(const T& value) {
  return encode_cbor(nlohmann::json(value));
}

template <typename T>
Result<T> parse(std::string_view bytes, const char* what) {
  try {
    return decode_cbor(bytes).get<T>();
  } catch (const nlohmann::json::exception& error) {
    return make_error(Errc::kInvalidArgument, "{}: {}", what, error.what());
  }
}

}  // namespace

std::string encode(const JobSpec& spec) { return dump(spec); }
Result<JobSpec> decode_job_spec(std::string_view bytes) {
  return parse<JobSpec>(bytes, "job description");
}
std::string encode(const AgentResult& result) { return dump(result); }
Result<AgentResult> decode_agent_result(std::string_view bytes) {
  return parse<AgentResult>(bytes, "agent result");
}

}  // namespace config
}  // namespace ddp
