// Every member of what programs send to each other is in the list that writes it. A member that a
// list forgets would compile, and arrive with its default.
#include <string>
#include <type_traits>
#include <variant>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/config/job_rules.h"
#include "common/config/job_spec.h"
#include "common/wire/control_messages.h"
#include "common/wire/rendezvous_messages.h"
#include "tests/support/member_count.h"

namespace ddp {
namespace {

TEST(EveryMember, OfTheRulesIsInKRules) {
  EXPECT_EQ(nlohmann::json(config::JobRules()).size(), test::member_count<config::JobRules>())
      << "kRules in job_rules.cc has a row for each rule";
}

TEST(EveryMember, OfTheJobIsWritten) {
  EXPECT_EQ(nlohmann::json::from_cbor(config::encode(config::JobSpec())).size(),
            test::member_count<config::JobSpec>())
      << "job_spec.cc lists the members of JobSpec";
  EXPECT_EQ(nlohmann::json::from_cbor(config::encode(config::AgentResult())).size(),
            test::member_count<config::AgentResult>())
      << "job_spec.cc lists the members of AgentResult";
}

// A message is written with its type. Numbers that are not known are left out.
template <typename T, typename Variant>
void expect_each_member() {
  T message;
  if constexpr (std::is_same_v<T, wire::Heartbeat> || std::is_same_v<T, wire::Progress>)
    message.loss = message.samples_per_second = static_cast<double>(message.total_steps = 1);
  if constexpr (std::is_same_v<T, wire::Progress>) message.computed_ms = 1;
  if constexpr (std::is_same_v<T, wire::Heartbeat>) {
    message.computed.emplace_back();
    message.meeting = true;
    message.waits.emplace_back();
    message.saved.emplace_back();
    message.sent_ms = 1;
    message.round = 1;
    message.loss_is = "NaN";
  }
  const nlohmann::json json = nlohmann::json::parse(wire::encode(Variant(message)));
  EXPECT_EQ(json.size(), test::member_count<T>() + 1) << json;
}

template <typename... Ts>
void expect_each_member_of(const std::variant<Ts...>& /*tag*/) {
  (expect_each_member<Ts, std::variant<Ts...>>(), ...);
}

TEST(EveryMember, OfAMessageIsWritten) {
  expect_each_member_of(wire::AgentMessage());
  expect_each_member_of(wire::CoordinatorMessage());
  expect_each_member_of(wire::WorkerMessage());
  expect_each_member_of(wire::WorkerOrder());
}

}  // namespace
}  // namespace ddp
