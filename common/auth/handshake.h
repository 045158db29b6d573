#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/base/secret.h"

// How both ends of a connection prove to each other that they know the job's token, without sending
// it: bytes in, bytes out, no sockets and no randomness (common/wire/PROTOCOL.md, "Who may join").
// Each object is one end of one connection; not thread safe. CryptoLibrary::load() must have
// succeeded.
namespace ddp::auth {

// A connection begins with this if its client has a token, and with kRendezvousPreamble if not.
inline constexpr std::string_view kPreamble =
    "\xDD"
    "DPR\x02";
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMaxJobIdBytes = 128;
using Nonce = std::array<unsigned char, kNonceBytes>;

// The answer of a daemon that requires TLS to a hello that came without TLS. The daemon then
// closes.
std::string needs_tls_answer();

// From the system's random numbers. Use a nonce only once.
Nonce random_nonce();

// The connecting end. It proves itself first, so a stranger who connects to a daemon gets nothing
// against which to test guesses of the token.
class ClientHandshake {
 public:
  // `job_id`: the job that it wants to join, at most kMaxJobIdBytes. The proof covers it.
  ClientHandshake(Secret token, const std::string& job_id, const Nonce& nonce);

  // To be sent first.
  const std::string& hello() const { return hello_; }
  // Takes bytes of the daemon and returns what to send to it, possibly nothing. Do not call it
  // again after it has failed or once done().
  //   permission_denied  the daemon refuses this token, has none, or cannot prove that it knows it
  //   kProtocol          no daemon of ours, or of a version without tokens
  Result<std::string> receive(std::string_view bytes);
  bool done() const { return state_ == State::kDone; }
  // The bytes that followed the handshake. Valid once done().
  std::string_view rest() const { return received_; }

 private:
  enum class State { kAnswer, kVerdict, kDone };
  Result<std::string> take_answer();
  Result<std::string> take_verdict();

  Secret token_;
  std::string hello_;
  std::string transcript_;
  std::string received_;
  State state_ = State::kAnswer;
};

// The accepting end.
class ServerHandshake {
 public:
  enum class Outcome {
    kPending,
    kAdmitted,
    kNoToken,     // The client has a token but this daemon has none, so it cannot prove itself.
    kWrongToken,  // The client does not know the token.
    kMalformed,   // No hello of this protocol.
  };

  // An empty token: the daemon has none.
  ServerHandshake(Secret token, const Nonce& nonce);

  // Takes bytes of the client and returns what to send to it. The first of them must begin
  // kPreamble. Keeps at most one hello and one proof. Call only while the outcome is kPending. If
  // the outcome is then neither kPending nor kAdmitted, close the connection after sending.
  std::string receive(std::string_view bytes);
  Outcome outcome() const { return outcome_; }
  // Valid once admitted.
  const std::string& job_id() const { return job_id_; }
  std::string_view rest() const { return received_; }

 private:
  std::string take_hello();
  std::string take_proof();
  std::string refuse(Outcome why, char answer);

  Secret token_;
  Nonce nonce_;
  std::string job_id_;
  std::string transcript_;  // Empty until the hello is complete.
  std::string received_;
  Outcome outcome_ = Outcome::kPending;
};

}  // namespace ddp::auth
