#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/server/log_limit.h"

namespace ddp::server {

// Why a connection was not let in.
enum class RefusalReason {
  kNoToken,     // An agent without a token, but the daemon requires one.
  kWrongToken,  // It could not prove that it knows the token.
  kNotTheJobs,  // An agent that has proved itself for one job asked to join another.
  kUnwanted,    // It has a token and this daemon has none, so it would not trust this daemon.
  kStranger,    // A store client from another machine, without an agent.
  kMalformed,   // It began the handshake, then sent something else or nothing more.
  kNoTls,       // An agent without TLS, but the daemon requires it.
  kTls,         // The TLS handshake failed: one side does not accept the other's certificate.
  kTlsUnknown,  // It uses TLS, but this daemon has none.
  kOtherUser,   // A process of another user of this machine.
  kNobodys,     // A process of this machine; nobody knows whose.
  kVersion,     // It speaks a version of the protocol that this release does not know.
};
inline constexpr std::size_t kRefusalCount = 12;

// Value of the label `reason` in /metrics.
std::string_view label_of(RefusalReason why);

using RefusalCounts = std::array<std::uint64_t, kRefusalCount>;  // By RefusalReason.

// Counts refusals and logs who was refused, at most 20 lines in 10 s.
class Refusals {
 public:
  // `remote`: ADDRESS:PORT. `details`: what else is known; may be empty.
  void note(RefusalReason why, const std::string& remote, std::string_view details = {});
  // Counts one that needs no line.
  void count(RefusalReason why) { ++counts_[static_cast<std::size_t>(why)]; }
  const RefusalCounts& counts() const { return counts_; }

 private:
  RefusalCounts counts_{};
  LogLimit log_limit_{20, Duration(10'000)};
};

}  // namespace ddp::server
