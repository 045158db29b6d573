// What earlier releases say to each other is understood by this one (common/wire/PROTOCOL.md,
// "Releases together").
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <variant>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/release.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kData = DDP_TEST_DATA;

struct Recorded {
  std::string sender;  // "agent" or "coordinator"
  json message;
};

// Lines "SENDER MESSAGE".
std::vector<Recorded> recorded(const fs::path& file) {
  std::vector<Recorded> all;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const std::size_t space = line.find(' ');
    all.push_back({line.substr(0, space), json::parse(line.substr(space + 1))});
  }
  return all;
}

// What this release makes of the message, as it would send it itself.
Result<json> read_back(const std::string& sender, const std::string& text) {
  if (sender == "agent") {
    const auto message = wire::decode_agent_message(text);
    if (!message) return message.error();
    return json::parse(wire::encode(*message));
  }
  const auto message = wire::decode_coordinator_message(text);
  if (!message) return message.error();
  return json::parse(wire::encode(*message));
}

TEST(Releases, MessagesOfEachOneAreUnderstood) {
  std::size_t files = 0;
  for (const auto& file : fs::directory_iterator(kData)) {
    ++files;
    for (const auto& [sender, message] : recorded(file.path())) {
      const auto read = read_back(sender, message.dump());
      ASSERT_TRUE(read) << file.path() << ": " << message << ": " << read.error().message;
      for (const auto& [member, value] : message.items())
        EXPECT_EQ((*read)[member], value) << file.path() << ": " << member << " of " << message;
      json newer = message;
      newer["of_a_later_release"] = {1, 2, 3};
      const auto read_newer = read_back(sender, newer.dump());
      ASSERT_TRUE(read_newer) << newer;
      EXPECT_EQ(*read_newer, *read);
    }
  }
  EXPECT_GT(files, 0u);
}

template <typename... Ts>
void expect_types_in(const std::set<std::string>& recorded, const std::variant<Ts...>& /*tag*/) {
  for (const auto& text : {wire::encode(std::variant<Ts...>(Ts()))...}) {
    const std::string type = json::parse(text)["type"];
    EXPECT_TRUE(recorded.contains(type))
        << type << " is missing in protocol-" << release() << ".txt; add a line such as\n"
        << text;
  }
}

TEST(Releases, MessagesOfThisOneAreKeptForTheNext) {
  std::set<std::string> types;
  for (const auto& [sender, message] :
       recorded(kData / fmt::format("protocol-{}.txt", release()))) {
    types.insert(message["type"]);
  }
  expect_types_in(types, wire::AgentMessage());
  expect_types_in(types, wire::CoordinatorMessage());
}

}  // namespace
}  // namespace ddp
