#include "common/wire/control_messages.h"

#include <cmath>
#include <limits>

#include "common/wire/json_messages.h"

namespace ddp::wire {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Hello, rank, pid, round, reconfigurable,
                                                stack_signal)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Joined, round)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Parked, round, step)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Committed, round, step)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(WorkerError, message, secondary)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Abort, round, reason)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(CommitRequest, round, deadline_ms)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NewRound, round, environment)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(SubmitSnapshot, id, step, bytes, locked)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(SnapshotWritten, id, ok, error, path, bytes,
                                                seconds, warnings)

std::string name_if_not_finite(double loss) {
  if (std::isfinite(loss)) return "";
  if (std::isnan(loss)) return "NaN";
  return loss > 0 ? "inf" : "-inf";
}

static double loss_named(const std::string& name) {
  if (name == "inf") return std::numeric_limits<double>::infinity();
  if (name == "-inf") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

// A loss of NaN is information for the user, and must not cost the step.
static void to_json(nlohmann::json& json, const Progress& progress) {
  json = {{"step", progress.step}};
  put_number(json, "loss", progress.loss);
  if (!std::isfinite(progress.loss)) json["loss_is"] = name_if_not_finite(progress.loss);
  put_number(json, "samples_per_second", progress.samples_per_second);
  if (progress.total_steps > 0) json["total_steps"] = progress.total_steps;
  put_number(json, "computed_ms", progress.computed_ms);
}
static void from_json(const nlohmann::json& json, Progress& progress) {
  progress.step = json.value("step", Progress().step);
  progress.loss = json.contains("loss_is") ? loss_named(json["loss_is"].get<std::string>())
                  : json.contains("loss")  ? get_number(json, "loss")
                                           : Progress().loss;
  progress.samples_per_second = get_number(json, "samples_per_second");
  progress.total_steps = json.value("total_steps", Progress().total_steps);
  progress.computed_ms = get_number(json, "computed_ms");
}

static void to_json(nlohmann::json& json, const CheckpointRequest&) {
  json = nlohmann::json::object();
}
static void from_json(const nlohmann::json&, CheckpointRequest&) {}

// Not in an unnamed namespace: argument-dependent lookup does not look there.
static const char* type_name(const Hello*) { return "hello"; }
static const char* type_name(const Progress*) { return "progress"; }
static const char* type_name(const WorkerError*) { return "error"; }
static const char* type_name(const Joined*) { return "joined"; }
static const char* type_name(const Parked*) { return "parked"; }
static const char* type_name(const Committed*) { return "committed"; }
static const char* type_name(const NewRound*) { return "new_round"; }
static const char* type_name(const Abort*) { return "abort"; }
static const char* type_name(const CommitRequest*) { return "commit_request"; }
static const char* type_name(const SubmitSnapshot*) { return "snapshot"; }
static const char* type_name(const SnapshotWritten*) { return "snapshot_written"; }
static const char* type_name(const CheckpointRequest*) { return "checkpoint_request"; }

std::string encode(const WorkerMessage& message) { return encode_variant(message); }
std::string encode(const WorkerOrder& message) { return encode_variant(message); }

Result<WorkerMessage> decode_worker_message(std::string_view payload) {
  return decode_variant(payload, static_cast<WorkerMessage*>(nullptr));
}

Result<WorkerOrder> decode_worker_order(std::string_view payload) {
  return decode_variant(payload, static_cast<WorkerOrder*>(nullptr));
}

}  // namespace ddp::wire
