#include "launcher/hosts/node_order.h"

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/base/parse_number.h"

namespace ddp::hosts {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodePlace, host, slots, node_rank)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeOrder, mark, program, folder, launch_agent,
                                                environment, arguments, start_limit_ms,
                                                checkpoint_signal, joins_ours, places)
NLOHMANN_JSON_SERIALIZE_ENUM(NodeReport::Kind, {{NodeReport::Kind::kReached, "reached"},
                                                {NodeReport::Kind::kEnded, "ended"},
                                                {NodeReport::Kind::kUnreachable, "unreachable"},
                                                {NodeReport::Kind::kLost, "lost"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeReport, kind, host, exit_code, summary, report,
                                                error)

// CBOR, because JSON strings are UTF-8, and file names and arguments need not be.
std::string encode(const NodeOrder& order) { return encode_cbor(nlohmann::json(order)); }

Result<NodeOrder> decode_order(std::string_view payload) {
  try {
    auto order = decode_cbor(payload).get<NodeOrder>();
    if (order.places.empty() || order.mark.empty() || order.program.empty()) {
      return make_error(Errc::kProtocol, "an order without a place, a mark or a program");
    }
    return order;
  } catch (const nlohmann::json::exception& error) {
    return make_error(Errc::kProtocol, "an order of {} bytes: {}", payload.size(), error.what());
  }
}

std::string encode_signal(int signal) { return std::to_string(signal); }

Result<int> decode_signal(std::string_view payload) {
  constexpr int kSignalMax = 64;
  const auto signal = parse_whole_number(payload, 1, kSignalMax);
  if (!signal) return make_error(Errc::kProtocol, "not a signal number, {} bytes", payload.size());
  return *signal;
}

std::string encode_line(const std::string& mark, const NodeReport& report) {
  // The report may contain workers' output, which need not be UTF-8.
  return mark + dump_json(nlohmann::json(report));
}

Result<NodeReport> decode_line(const std::string& mark, std::string_view line) {
  try {
    return parse_json(line.substr(mark.size())).get<NodeReport>();
  } catch (const nlohmann::json::exception& error) {
    return make_error(Errc::kProtocol, "a report of {} bytes: {}", line.size(), error.what());
  }
}

}  // namespace ddp::hosts
