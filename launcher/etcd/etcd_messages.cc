#include "launcher/etcd/etcd_messages.h"

#include "common/base/json_text.h"
#include "common/base/parse_number.h"

namespace ddp::etcd {
namespace {

using nlohmann::json;

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Thrown and caught in this file only, like nlohmann's exceptions.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::int64_t number(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (found->is_number_integer()) return found->get<std::int64_t>();
  const auto& text = found->get_ref<const std::string&>();
  const auto value = parse_whole_number<std::int64_t>(text);
  if (!value) throw Malformed(text);
  return *value;
}

std::string bytes(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return "";
  auto decoded = from_base64(found->get_ref<const std::string&>());
  if (!decoded) throw Malformed(decoded.error().message);
  return std::move(*decoded);
}

KeyValue key_value(const json& object) {
  return {.key = bytes(object, "key"),
          .value = bytes(object, "value"),
          .create_revision = number(object, "create_revision"),
          .mod_revision = number(object, "mod_revision"),
          .lease = number(object, "lease")};
}

template <typename Parse>
auto guarded(std::string_view text, Parse parse) -> Result<decltype(parse(json()))> {
  try {
    return parse(parse_json(text));
  } catch (const std::exception& error) {
    return make_error(Errc::kProtocol, "not an answer of etcd ({}): {}", error.what(),
                      text.substr(0, 200));
  }
}

}  // namespace

std::string to_base64(std::string_view input) {
  std::string out;
  for (std::size_t i = 0; i < input.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < input.size() ? static_cast<unsigned char>(input[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out += i + j <= input.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

Result<std::string> from_base64(std::string_view text) {
  const auto bad = [&] {
    return make_error(Errc::kProtocol, "'{}' is not base64", text.substr(0, 80));
  };
  if (text.size() % 4 != 0) return bad();
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string out;
  std::uint32_t bits = 0;
  int have = 0;
  for (const char digit : text) {
    const auto value = kDigits.find(digit);
    if (value == std::string_view::npos) return bad();
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    have += 6;
    if (have < 8) continue;
    have -= 8;
    out += static_cast<char>(bits >> have & 0xFF);
  }
  return out;
}

std::string to_json(const Transaction& transaction) {
  json gets = json::array();
  for (const std::string& key : transaction.get) {
    gets.push_back({{"request_range", {{"key", to_base64(key)}}}});
  }
  json compares = json::array();
  for (const Compare& compare : transaction.compare) {
    const bool created = compare.what == Compare::What::kCreated;
    compares.push_back(
        {{"key", to_base64(compare.key)},
         {"target", created ? "CREATE" : "MOD"},
         {"result", "EQUAL"},
         {created ? "create_revision" : "mod_revision", std::to_string(compare.revision)}});
  }
  json success = json::array();
  for (const Put& put : transaction.put) {
    success.push_back({{"request_put",
                        {{"key", to_base64(put.key)},
                         {"value", to_base64(put.value)},
                         {"lease", std::to_string(put.lease)}}}});
  }
  for (const json& get : gets) success.push_back(get);
  return json{{"compare", compares}, {"success", success}, {"failure", gets}}.dump();
}

Result<TransactionAnswer> parse_answer(const Transaction& transaction, std::string_view text) {
  return guarded(text, [&](const json& object) {
    TransactionAnswer answer;
    answer.revision = number(object.at("header"), "revision");
    answer.succeeded = object.value("succeeded", false);
    const json responses = object.value("responses", json::array());
    for (const json& response : responses) {
      const auto range = response.find("response_range");
      if (range == response.end()) continue;
      const auto found = range->find("kvs");
      if (found == range->end() || found->empty()) {
        answer.got.emplace_back();
      } else {
        answer.got.emplace_back(key_value(found->at(0)));
      }
    }
    if (answer.got.size() != transaction.get.size()) throw Malformed("keys are missing");
    return answer;
  });
}

std::string lease_grant_json(std::int64_t seconds) {
  return json{{"TTL", std::to_string(seconds)}}.dump();
}

Result<LeaseId> parse_lease_grant(std::string_view text) {
  return guarded(text, [](const json& object) {
    const LeaseId id = number(object, "ID");
    if (id == 0) throw Malformed("no lease");
    return id;
  });
}

std::string lease_json(LeaseId lease) { return json{{"ID", std::to_string(lease)}}.dump(); }

Result<std::int64_t> parse_keep_alive(std::string_view text) {
  return guarded(text, [](const json& object) { return number(object.at("result"), "TTL"); });
}

std::string watch_json(std::string_view key, Revision start) {
  return json{
      {"create_request", {{"key", to_base64(key)}, {"start_revision", std::to_string(start)}}}}
      .dump();
}

Result<WatchAnswer> parse_watch(std::string_view text) {
  return guarded(text, [](const json& object) {
    const json& result = object.at("result");
    WatchAnswer answer;
    answer.changed = result.contains("events") && !result.at("events").empty();
    answer.ended = result.value("canceled", false);
    answer.reason = result.value("cancel_reason", "");
    return answer;
  });
}

ErrorAnswer parse_error(std::string_view body) {
  const json object = parse_json_or_discard(body);
  if (!object.is_object()) return {.code = 2, .message = std::string(body.substr(0, 200))};
  ErrorAnswer answer;
  if (const auto code = object.find("code"); code != object.end() && code->is_number_integer()) {
    answer.code = code->get<int>();
  }
  for (const char* name : {"message", "error"}) {
    const auto text = object.find(name);
    if (text != object.end() && text->is_string()) answer.message = text->get<std::string>();
  }
  return answer;
}

}  // namespace ddp::etcd
