#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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

// What a connection begins with whose client has a token; without one it is kRendezvousPreamble.
inline constexpr std::string_view kPreamble =
    "\xDD"
    "DPR\x02";
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMaxJobIdBytes = 128;
using Nonce = std::array<unsigned char, kNonceBytes>;

// What a daemon that is reached by TLS only answers to a hello that came without, before it closes.
std::string needs_tls_answer();

// From the system's random numbers. A nonce is used once.
Nonce random_nonce();

enum class Purpose : std::uint8_t {
  kAgent = 1,        // Frames of the rendezvous follow.
  kStoreClient = 2,  // Requests to the c10d store follow.
};

// What the client asks to be let in as; the proof covers it.
struct Claim {
  Purpose purpose = Purpose::kAgent;
  std::string job_id;  // At most kMaxJobIdBytes; of an agent, the job that it may join.
};

// The connecting end. It proves itself first: who only connects to a daemon gets nothing that he
// could try passwords on.
class ClientHandshake {
 public:
  ClientHandshake(Secret token, Claim claim, const Nonce& nonce);

  // To be sent first.
  const std::string& hello() const { return hello_; }
  // What to send upon these bytes of the daemon, maybe nothing. Once it has failed, or is done, it
  // must not be called again.
  //   permission_denied  the daemon refuses this token, has none, or cannot prove that it knows it
  //   kProtocol          no daemon of ours, or of a version without tokens
  Result<std::string> receive(std::string_view bytes);
  bool done() const { return state_ == State::kDone; }
  // What came behind the handshake. Once done.
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
    kNoToken,     // The client has a token and this daemon none: it could not prove itself.
    kWrongToken,  // The client does not know the token.
    kMalformed,   // No hello of this protocol.
  };

  // An empty token: the daemon has none.
  ServerHandshake(Secret token, const Nonce& nonce);

  // What to send upon these bytes, the first of which begin kPreamble. Nothing is kept beyond one
  // hello and one proof. Only while the outcome is kPending; if it is neither that nor kAdmitted
  // afterwards, the connection is to be closed behind what is sent.
  std::string receive(std::string_view bytes);
  Outcome outcome() const { return outcome_; }
  // Once admitted.
  const Claim& claim() const { return claim_; }
  std::string_view rest() const { return received_; }

 private:
  std::string take_hello();
  std::string take_proof();
  std::string refuse(Outcome why, char answer);

  Secret token_;
  Nonce nonce_;
  Claim claim_;
  std::string transcript_;  // Empty until the hello is complete.
  std::string received_;
  Outcome outcome_ = Outcome::kPending;
};

}  // namespace ddp::auth
