#include "launcher/replicas/replica_message.h"

#include <exception>

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"

namespace ddp::replicas {
namespace {

using nlohmann::json;

constexpr const char* kType = "replica";

}  // namespace

std::string encode(const ReplicaMessage& message) {
  json out{{"type", kType},          {"job_id", message.job_id}, {"group", message.group},
           {"from", message.from},   {"number", message.number}, {"host", message.at.host},
           {"port", message.at.port}};
  if (message.raft) out["raft"] = *message.raft;
  if (message.announcement) {
    out["announcement"] = {{"term", message.announcement->term},
                           {"next_round", message.announcement->next_round},
                           {"coordinates", message.announcement->coordinates},
                           {"has_your_agent", message.announcement->has_your_agent}};
  }
  if (message.history) {
    out["history"] = {{"term", message.history->term}, {"text", message.history->text}};
  }
  return dump_json(out);
}

Result<ReplicaMessage> decode_replica_message(std::string_view payload) {
  try {
    const json in = parse_json(payload);
    if (!in.is_object() || in.value("type", "") != kType) {
      return make_error(Errc::kProtocol, "not a message of a replica");
    }
    ReplicaMessage message{.job_id = in.at("job_id").get<std::string>(),
                           .group = in.at("group").get<MemberId>(),
                           .from = in.at("from").get<MemberId>(),
                           .number = in.at("number").get<std::uint64_t>(),
                           .at = {in.at("host").get<std::string>(), in.at("port").get<int>()}};
    if (in.contains("raft")) message.raft = in.at("raft").get<RaftMessage>();
    if (const auto found = in.find("announcement"); found != in.end()) {
      message.announcement = Announcement{.term = found->at("term").get<std::uint64_t>(),
                                          .next_round = found->at("next_round").get<Round>(),
                                          .coordinates = found->value("coordinates", true),
                                          .has_your_agent = found->value("has_your_agent", false)};
    }
    if (const auto found = in.find("history"); found != in.end()) {
      message.history = History{.term = found->at("term").get<std::uint64_t>(),
                                .text = found->at("text").get<std::string>()};
    }
    // None is a message of a newer release, which says nothing to this one.
    const bool one =
        message.raft.has_value() + message.announcement.has_value() + message.history.has_value() <=
        1;
    const bool has_port = message.at.port > 0 && message.at.port < 65'536;
    if (!one || !has_port || message.from == 0 || message.group == 0) {
      return make_error(Errc::kProtocol, "a message of a replica without a sender or content");
    }
    return message;
  } catch (const std::exception& error) {  // nlohmann's, or of a RaftMessage.
    return make_error(Errc::kProtocol, "message of a replica, {} bytes: {}", payload.size(),
                      error.what());
  }
}

}  // namespace ddp::replicas
