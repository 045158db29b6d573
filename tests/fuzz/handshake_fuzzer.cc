// Feeds arbitrary bytes to both ends of the handshake by which nodes prove that they belong to a
// job, under libFuzzer with the address and undefined behaviour sanitizers.
//
// The first byte of an input is its kind. 0: pieces for the daemon; 1: pieces for the agent; a
// piece is a byte of length and that many bytes. 2: a handshake between two ends that know the
// token, cut into pieces of the lengths that follow. One byte of it may be changed on the way: two
// bytes of the input say which byte of the conversation, one says how.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/auth/crypto_library.h"
#include "common/auth/handshake.h"

namespace {

using namespace ddp::auth;  // NOLINT(google-build-using-namespace): what is fuzzed.
using Outcome = ServerHandshake::Outcome;

void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "the handshake fails: %s\n", what);
  std::abort();
}

// The same each time, so that what is found can be found again.
Nonce nonce_of(unsigned char fill) {
  Nonce nonce;
  nonce.fill(fill);
  return nonce;
}

ServerHandshake daemon() { return {ddp::Secret("a token of the fuzzer"), nonce_of(1)}; }
ClientHandshake agent() { return {ddp::Secret("a token of the fuzzer"), "job", nonce_of(2)}; }

std::string_view take(std::string_view& input, std::size_t count) {
  const std::string_view taken = input.substr(0, count);
  input.remove_prefix(taken.size());
  return taken;
}
std::size_t take_number(std::string_view& input) {
  const std::string_view taken = take(input, 1);
  return taken.empty() ? 0 : static_cast<unsigned char>(taken[0]);
}

// Nobody but who knows the token gets in: no input can, the proof being 32 bytes of HMAC.
void feed_daemon(std::string_view input) {
  ServerHandshake handshake = daemon();
  while (!input.empty() && handshake.outcome() == Outcome::kPending) {
    const std::size_t size = take_number(input);
    handshake.receive(take(input, size));
    must(handshake.outcome() != Outcome::kAdmitted, "a stranger is admitted");
  }
}

void feed_agent(std::string_view input) {
  ClientHandshake handshake = agent();
  while (!input.empty()) {
    const std::size_t size = take_number(input);
    if (!handshake.receive(take(input, size))) return;
    must(!handshake.done(), "a stranger is believed");
  }
}

// Both ends and what is under way between them.
struct Conversation {
  explicit Conversation(std::string_view input) {
    changed_at = take_number(input) << 8;
    changed_at += take_number(input);
    change = static_cast<char>(take_number(input));
    cuts = input;
  }

  // Of the bytes in `queue` as many as the input says, with the change if it is their turn.
  std::string next(std::string& queue) {
    const std::size_t size = cuts.empty() ? queue.size() : 1 + take_number(cuts);
    std::string piece = queue.substr(0, size);
    queue.erase(0, piece.size());
    if (change != 0 && changed_at >= passed && changed_at < passed + piece.size()) {
      char& byte = piece[changed_at - passed];
      byte = static_cast<char>(byte ^ change);
      is_changed = true;
    }
    passed += piece.size();
    return piece;
  }

  void run() {
    std::string to_daemon = client.hello();
    std::string to_agent;
    while (!to_daemon.empty() || !to_agent.empty()) {
      if (!to_daemon.empty() && server.outcome() == Outcome::kPending) {
        to_agent += server.receive(next(to_daemon));
      } else {
        to_daemon.clear();
      }
      if (to_agent.empty()) continue;
      const ddp::Result<std::string> answer = client.receive(next(to_agent));
      if (!answer) return;
      to_daemon += *answer;
      if (client.done()) return;
    }
  }

  std::size_t changed_at = 0;
  char change = 0;
  std::string_view cuts;
  std::size_t passed = 0;
  bool is_changed = false;
  ServerHandshake server = daemon();
  ClientHandshake client = agent();
};

void converse(std::string_view input) {
  Conversation conversation(input);
  conversation.run();
  const bool both =
      conversation.server.outcome() == Outcome::kAdmitted && conversation.client.done();
  must(both != conversation.is_changed, both ? "a changed byte is not noticed" : "they disagree");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool is_ready = CryptoLibrary::load().has_value();
  must(is_ready, "libcrypto is not there");
  std::string_view input(reinterpret_cast<const char*>(data), size);
  switch (take_number(input) % 3) {
    case 0:
      feed_daemon(input);
      break;
    case 1:
      feed_agent(input);
      break;
    default:
      converse(input);
  }
  return 0;
}
