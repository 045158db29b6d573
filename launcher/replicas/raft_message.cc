#include "launcher/replicas/raft_message.h"

#include <stdexcept>
#include <string_view>

#include <nlohmann/json.hpp>

namespace ddp::replicas {
namespace {

using nlohmann::json;

constexpr std::string_view kDigits = "0123456789abcdef";

std::string to_hex(std::string_view bytes) {
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    hex += kDigits[value >> 4];
    hex += kDigits[value & 15];
  }
  return hex;
}

std::string from_hex(std::string_view hex) {
  const auto digit = [](char c) {
    const auto found = kDigits.find(c);
    if (found == std::string_view::npos) throw std::invalid_argument("not a hexadecimal digit");
    return static_cast<unsigned>(found);
  };
  if (hex.size() % 2 != 0) throw std::invalid_argument("half a byte");
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(digit(hex[i]) << 4 | digit(hex[i + 1]));
  }
  return bytes;
}

}  // namespace

void to_json(json& out, const RaftMessage& message) {
  out = json{{"kind", static_cast<int>(message.kind)},
             {"term", message.term},
             {"index", message.index},
             {"index_term", message.index_term},
             {"last_index", message.last_index},
             {"commit_index", message.commit_index},
             {"granted", message.granted},
             {"pre_vote", message.pre_vote},
             {"disrupt_leader", message.disrupt_leader},
             {"features", message.features},
             {"capacity", message.capacity}};
  json& entries = out["entries"] = json::array();
  for (const RaftEntry& entry : message.entries) {
    entries.push_back({entry.term, entry.type, to_hex(entry.data)});
  }
}

void from_json(const json& in, RaftMessage& message) {
  message.kind = static_cast<RaftMessage::Kind>(in.at("kind").get<int>());
  switch (message.kind) {
    case RaftMessage::Kind::kAppend:
    case RaftMessage::Kind::kAppendResult:
    case RaftMessage::Kind::kVote:
    case RaftMessage::Kind::kVoteResult:
    case RaftMessage::Kind::kTimeoutNow:
      break;
    default:
      throw std::invalid_argument("unknown kind of message");
  }
  in.at("term").get_to(message.term);
  in.at("index").get_to(message.index);
  in.at("index_term").get_to(message.index_term);
  in.at("last_index").get_to(message.last_index);
  in.at("commit_index").get_to(message.commit_index);
  in.at("granted").get_to(message.granted);
  in.at("pre_vote").get_to(message.pre_vote);
  in.at("disrupt_leader").get_to(message.disrupt_leader);
  in.at("features").get_to(message.features);
  in.at("capacity").get_to(message.capacity);
  message.entries.clear();
  for (const json& entry : in.at("entries")) {
    message.entries.push_back({.term = entry.at(0).get<std::uint64_t>(),
                               .type = entry.at(1).get<int>(),
                               .data = from_hex(entry.at(2).get<std::string>())});
  }
}

}  // namespace ddp::replicas
