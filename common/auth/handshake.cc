#include "common/auth/handshake.h"

#include <sys/random.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/auth/hmac.h"

namespace ddp::auth {
namespace {

constexpr char kGoOn = 0;
constexpr char kHasNoToken = 1;
constexpr char kNeedsTls = 2;
constexpr char kAdmitted = 0;
constexpr char kRefused = 1;
constexpr char kAgent = 1;  // What the client is: frames of the rendezvous follow.
// Preamble, kAgent, length of the job's name.
constexpr std::size_t kHelloHead = kPreamble.size() + 2;
constexpr std::size_t kAnswerBytes = kPreamble.size() + 1 + kNonceBytes;
constexpr std::size_t kVerdictBytes = 1 + kMacBytes;

// Each side's proof covers its role, so it cannot be sent back to the side that made it. It also
// covers both nonces, so it is of no use in another connection.
Mac prove(const Secret& token, std::string_view role, std::string_view transcript) {
  std::string message = "ddp-run rendezvous 2 ";
  message += role;
  message += '\0';
  message += transcript;
  return hmac_sha256(token.reveal(), message);
}

constexpr std::string_view kClientRole = "client";
constexpr std::string_view kDaemonRole = "daemon";

std::string_view bytes_of_nonce(const Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

template <typename... Args>
Error denied(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(std::make_error_code(std::errc::permission_denied), format,
                    std::forward<Args>(args)...);
}

// Whether the two are equal up to the length of the shorter one.
bool agree(std::string_view a, std::string_view b) {
  const std::size_t size = std::min(a.size(), b.size());
  return a.substr(0, size) == b.substr(0, size);
}

}  // namespace

std::string needs_tls_answer() { return std::string(kPreamble) + kNeedsTls; }

Nonce random_nonce() {
  Nonce nonce{};
  DDP_CHECK(::getrandom(nonce.data(), nonce.size(), 0) == static_cast<ssize_t>(nonce.size()),
            "getrandom failed");
  return nonce;
}

ClientHandshake::ClientHandshake(Secret token, const std::string& job_id, const Nonce& nonce)
    : token_(std::move(token)), hello_(kPreamble) {
  DDP_CHECK(job_id.size() <= kMaxJobIdBytes, "a job's name of {} bytes", job_id.size());
  hello_ += kAgent;
  hello_ += static_cast<char>(job_id.size());
  hello_ += job_id;
  hello_ += bytes_of_nonce(nonce);
}

Result<std::string> ClientHandshake::receive(std::string_view bytes) {
  DDP_CHECK(state_ != State::kDone, "{} bytes behind the handshake", bytes.size());
  received_ += bytes;
  std::string out;
  if (state_ == State::kAnswer) {
    Result<std::string> proof = take_answer();
    if (!proof) return proof;
    out = std::move(*proof);
  }
  if (state_ != State::kVerdict) return out;
  Result<std::string> more = take_verdict();
  if (!more) return more;
  return out;
}

Result<std::string> ClientHandshake::take_answer() {
  if (!agree(received_, kPreamble)) {
    return make_error(Errc::kProtocol,
                      "the answer is not that of a ddp-run rendezvous of this version");
  }
  if (received_.size() <= kPreamble.size()) return std::string();
  if (received_[kPreamble.size()] == kNeedsTls) {
    return denied(
        "it is reached by TLS only; give this node --tls-cert, --tls-key and --tls-ca as the "
        "others");
  }
  if (received_[kPreamble.size()] != kGoOn) {
    return denied(
        "it has no token, so this node cannot know whether it is the job's rendezvous; start it "
        "with the same token (--rdzv-token-file or DDP_RDZV_TOKEN), or start this node without "
        "one");
  }
  if (received_.size() < kAnswerBytes) return std::string();
  transcript_ = hello_ + received_.substr(0, kAnswerBytes);
  received_.erase(0, kAnswerBytes);
  state_ = State::kVerdict;
  return std::string(bytes_of(prove(token_, kClientRole, transcript_)));
}

Result<std::string> ClientHandshake::take_verdict() {
  if (received_.empty()) return std::string();
  if (received_[0] != kAdmitted) {
    return denied(
        "it has another token than this node; give all nodes of the job the same one "
        "(--rdzv-token-file or DDP_RDZV_TOKEN)");
  }
  if (received_.size() < kVerdictBytes) return std::string();
  const std::string_view proof = std::string_view(received_).substr(1, kMacBytes);
  if (!equal_in_constant_time(proof, bytes_of(prove(token_, kDaemonRole, transcript_)))) {
    return denied(
        "it could not prove that it knows the job's token, so another program answers there; "
        "choose another endpoint");
  }
  received_.erase(0, kVerdictBytes);
  state_ = State::kDone;
  return std::string();
}

ServerHandshake::ServerHandshake(Secret token, const Nonce& nonce)
    : token_(std::move(token)), nonce_(nonce) {}

std::string ServerHandshake::receive(std::string_view bytes) {
  DDP_CHECK(outcome_ == Outcome::kPending, "{} bytes behind the handshake", bytes.size());
  received_ += bytes;
  std::string out;
  if (transcript_.empty()) out = take_hello();
  if (outcome_ == Outcome::kPending && !transcript_.empty()) out += take_proof();
  return out;
}

std::string ServerHandshake::refuse(Outcome why, char answer) {
  outcome_ = why;
  received_.clear();
  return std::string(1, answer);
}

std::string ServerHandshake::take_hello() {
  if (!agree(received_, kPreamble)) {
    outcome_ = Outcome::kMalformed;
    return {};
  }
  if (received_.size() < kHelloHead) return {};
  const std::size_t name_size = static_cast<unsigned char>(received_[kPreamble.size() + 1]);
  if (received_[kPreamble.size()] != kAgent || name_size > kMaxJobIdBytes) {
    outcome_ = Outcome::kMalformed;
    return {};
  }
  const std::size_t hello_size = kHelloHead + name_size + kNonceBytes;
  if (received_.size() < hello_size) return {};
  std::string answer(kPreamble);
  if (token_.empty()) return answer + refuse(Outcome::kNoToken, kHasNoToken);
  job_id_ = received_.substr(kHelloHead, name_size);
  answer += kGoOn;
  answer += bytes_of_nonce(nonce_);
  transcript_ = received_.substr(0, hello_size) + answer;
  received_.erase(0, hello_size);
  return answer;
}

std::string ServerHandshake::take_proof() {
  if (received_.size() < kMacBytes) return {};
  const std::string_view proof = std::string_view(received_).substr(0, kMacBytes);
  if (!equal_in_constant_time(proof, bytes_of(prove(token_, kClientRole, transcript_)))) {
    return refuse(Outcome::kWrongToken, kRefused);
  }
  received_.erase(0, kMacBytes);
  outcome_ = Outcome::kAdmitted;
  return kAdmitted + std::string(bytes_of(prove(token_, kDaemonRole, transcript_)));
}

}  // namespace ddp::auth
