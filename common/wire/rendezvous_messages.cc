#include "common/wire/rendezvous_messages.h"

#include <cmath>

#include "common/base/json_text.h"
#include "common/wire/json_messages.h"

namespace ddp::wire {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Failure, kind, node_id, host, group_rank, rank,
                                                local_rank, pid, exit_code, signal, time_ms, age_ms,
                                                own_time, was_ending, secondary, message, cause,
                                                callstack, log_path, stderr_tail)
// Every node is told of every other one, so fields that nearly always have their default are left
// out.
static void to_json(nlohmann::json& json, const Member& member) {
  json = {{"node_id", member.node_id},
          {"host", member.host},
          {"address", member.address},
          {"nproc", member.nproc},
          {"first_rank", member.first_rank}};
  if (member.role != kDefaultRole) json["role"] = member.role;
}
static void from_json(const nlohmann::json& json, Member& member) {
  const Member defaults;
  member.node_id = json.value("node_id", defaults.node_id);
  member.host = json.value("host", defaults.host);
  member.address = json.value("address", defaults.address);
  member.nproc = json.value("nproc", defaults.nproc);
  member.first_rank = json.value("first_rank", defaults.first_rank);
  member.role = json.value("role", defaults.role);
}
// Not in an unnamed namespace: argument-dependent lookup does not look there.
static void to_json(nlohmann::json& json, const MemberList& members) { json = members.all(); }
static void from_json(const nlohmann::json& json, MemberList& members) {
  members = MemberList(json.get<std::vector<Member>>());
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Join, job_id, node_id, host, address, node_rank,
                                                node_rank_is_wish, program, nproc, role, rules,
                                                last_round, restarts, was_joined, running_round,
                                                group_rank, members, needs_own_store, store_port,
                                                replica_port, unfit, release)
// As a pair, because there is one for each worker in each heartbeat.
static void to_json(nlohmann::json& json, const Computed& computed) {
  json = {computed.step, nullptr};
  if (std::isfinite(computed.ms)) json[1] = computed.ms;
}
static void from_json(const nlohmann::json& json, Computed& computed) {
  computed = {.step = json.at(0).get<std::int64_t>()};
  if (!json.at(1).is_null()) computed.ms = json.at(1).get<double>();
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(SavedShare, round, step, bytes, seconds, published,
                                                error)
static void to_json(nlohmann::json& json, const Heartbeat& heartbeat) {
  json = {{"step", heartbeat.step}};
  put_number(json, "loss", heartbeat.loss);
  if (!heartbeat.loss_is.empty()) json["loss_is"] = heartbeat.loss_is;
  put_number(json, "samples_per_second", heartbeat.samples_per_second);
  if (heartbeat.total_steps > 0) json["total_steps"] = heartbeat.total_steps;
  if (!heartbeat.computed.empty()) json["computed"] = heartbeat.computed;
  if (heartbeat.meeting) json["meeting"] = true;
  if (!heartbeat.waits.empty()) json["waits"] = heartbeat.waits;
  if (!heartbeat.saved.empty()) json["saved"] = heartbeat.saved;
  if (heartbeat.sent_ms != 0) json["sent_ms"] = heartbeat.sent_ms;
  if (heartbeat.round != kNoRound) json["round"] = heartbeat.round;
}
static void from_json(const nlohmann::json& json, Heartbeat& heartbeat) {
  heartbeat.step = json.value("step", Heartbeat().step);
  heartbeat.loss = get_number(json, "loss");
  heartbeat.loss_is = json.value("loss_is", Heartbeat().loss_is);
  heartbeat.samples_per_second = get_number(json, "samples_per_second");
  heartbeat.total_steps = json.value("total_steps", Heartbeat().total_steps);
  heartbeat.computed = json.value("computed", Heartbeat().computed);
  heartbeat.meeting = json.value("meeting", Heartbeat().meeting);
  heartbeat.waits = json.value("waits", Heartbeat().waits);
  heartbeat.saved = json.value("saved", Heartbeat().saved);
  heartbeat.sent_ms = json.value("sent_ms", Heartbeat().sent_ms);
  heartbeat.round = json.value("round", Heartbeat().round);
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(WorkerFailed, round, failure, step,
                                                reports_progress, sent_ms)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Succeeded, round, saved)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Stopped, round, failures, parked, step,
                                                reports_progress, operations, store_port, sent_ms,
                                                saved)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeCommitted, round, step)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Leave, reason)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Output, id, out, err)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(TraceEvents, events, lost, more, fill, sent_ns)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ReadTrace, clock, zero_ns, answered_ns, received_ns,
                                                sent_ns, names)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Welcome, heartbeat_ms, lease_ms, notice)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Waiting, have, min_nodes, max_nodes, hosts, text)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RoundStart, round, restarts, max_restarts,
                                                group_rank, world_size, members, master_addr,
                                                master_port, coordinator_addr, coordinator_port,
                                                store_port, link_nonce, lost_round, lost_ranks,
                                                reason)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Stop, round, reason, keep_workers)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(CommitRound, round, deadline_ms, reason)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Finish, exit_code, summary, report, error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Refused, message, left_out)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Moved, host, port)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Notice, text)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ShowOutput, id, local_rank)
static void to_json(nlohmann::json& json, const Ping& /*ping*/) { json = nlohmann::json::object(); }
static void from_json(const nlohmann::json& /*json*/, Ping& /*ping*/) {}

// Not in an unnamed namespace: argument-dependent lookup does not look there.
static const char* type_name(const Join*) { return "join"; }
static const char* type_name(const Heartbeat*) { return "heartbeat"; }
static const char* type_name(const WorkerFailed*) { return "worker_failed"; }
static const char* type_name(const Succeeded*) { return "succeeded"; }
static const char* type_name(const NodeCommitted*) { return "node_committed"; }
static const char* type_name(const Stopped*) { return "stopped"; }
static const char* type_name(const Leave*) { return "leave"; }
static const char* type_name(const Output*) { return "output"; }
static const char* type_name(const TraceEvents*) { return "trace_events"; }
static const char* type_name(const ReadTrace*) { return "read_trace"; }
static const char* type_name(const Welcome*) { return "welcome"; }
static const char* type_name(const Waiting*) { return "waiting"; }
static const char* type_name(const RoundStart*) { return "round_start"; }
static const char* type_name(const CommitRound*) { return "commit_round"; }
static const char* type_name(const Stop*) { return "stop"; }
static const char* type_name(const Finish*) { return "finish"; }
static const char* type_name(const Refused*) { return "refused"; }
static const char* type_name(const Moved*) { return "moved"; }
static const char* type_name(const Ping*) { return "ping"; }
static const char* type_name(const Notice*) { return "notice"; }
static const char* type_name(const ShowOutput*) { return "show_output"; }

// A trace is most of what agents say while somebody wants one. So its events follow the message's
// object as they are, after a line break, and are not escaped and read once more.
std::string encode(const AgentMessage& message) {
  const auto* trace = std::get_if<TraceEvents>(&message);
  if (trace == nullptr || trace->events.empty()) return encode_variant(message);
  const TraceEvents rest{
      .lost = trace->lost, .more = trace->more, .fill = trace->fill, .sent_ns = trace->sent_ns};
  return encode_variant(AgentMessage(rest), {"events"}) + '\n' + trace->events;
}

// The list of members is nearly all of a round_start and the same for every receiver. So its text
// is made once, and appended to the rest.
std::string encode(const CoordinatorMessage& message) {
  const auto* start = std::get_if<RoundStart>(&message);
  if (start == nullptr || start->members.empty()) return encode_variant(message);
  RoundStart rest = *start;
  rest.members = {};
  std::string text = encode_variant(CoordinatorMessage(std::move(rest)), {"members"});
  text.pop_back();
  text += ",\"members\":";
  text += start->members.encoded(
      [](const std::vector<Member>& members) { return dump_json(nlohmann::json(members)); });
  text += '}';
  return text;
}

Result<AgentMessage> decode_agent_message(std::string_view payload) {
  const auto decode = [](std::string_view object) {
    return decode_variant(object, static_cast<AgentMessage*>(nullptr));
  };
  const std::size_t end = payload.find('\n');
  if (end == std::string_view::npos) return decode(payload);
  auto message = decode(payload.substr(0, end));
  auto* const trace = message ? std::get_if<TraceEvents>(&*message) : nullptr;
  if (trace == nullptr) return decode(payload);  // Lines of one object.
  trace->events = payload.substr(end + 1);
  return message;
}

Result<CoordinatorMessage> decode_coordinator_message(std::string_view payload) {
  return decode_variant(payload, static_cast<CoordinatorMessage*>(nullptr));
}

}  // namespace ddp::wire
