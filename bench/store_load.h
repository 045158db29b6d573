#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/samples.h"
#include "common/base/unique_fd.h"

namespace ddp::bench {

// The protocol of the server under load. PyTorch 1.13's server and ours both speak the legacy
// dialect, so that both get the same bytes.
enum class Protocol { kC10dLegacy, kC10dNewest, kRedis, kEcho };
Protocol parse_protocol(std::string_view name);  // Throws std::invalid_argument.

// How many bytes answer one request.
struct Answer {
  std::size_t bytes = 0;  // 0: up to and including the first newline.
};

// One request, which a client repeats, each time after the answer to the last one.
struct Exchange {
  std::string request;
  Answer answer;
};

// What a client sends before its first request, and the answer to it.
Exchange greeting(Protocol protocol);
// `op` is get, set or add (redis: INCR). A c10d SET has no answer, so a CHECK of the key follows in
// the same write: the round trip until the value is known to be there.
Exchange exchange(Protocol protocol, std::string_view op, std::string_view key,
                  std::string_view value);

// Connects to a server on this machine; returns a non-blocking socket; throws std::system_error.
UniqueFd connect_to(int port);
// Sends all of it and waits for its answer; throws if the server closes.
void converse(int fd, const Exchange& exchange);

struct LoadResult {
  double seconds = 0;
  std::vector<double> times;  // Of each round trip, in seconds.
};

// For so many seconds, each client sends its request again as soon as it has the answer, all on
// this thread. Every client has had a turn before the time begins.
LoadResult run_load(const std::vector<UniqueFd>& clients, const std::vector<Exchange>& exchanges,
                    double seconds);

// The time until all clients have left a barrier: with the server's BARRIER (newest dialect), or
// with a counter, a flag and WAIT, as PyTorch's clients do if the server has no BARRIER.
double run_barrier(const std::vector<UniqueFd>& clients, Protocol protocol, std::string_view name,
                   bool by_counter);

// Opens connections one after the other, sends up to 255 random bytes on each and resets it.
void churn(int port, std::size_t connections, std::uint64_t seed);

// An echo server: prints its port and sends back what comes in, until standard input ends. It shows
// the cost of a round trip without any work.
void serve_echo();

}  // namespace ddp::bench
