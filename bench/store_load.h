#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/samples.h"
#include "common/base/unique_fd.h"

namespace ddp::bench {

// Whom the load generator talks to. The legacy dialect is the one that PyTorch 1.13's server and
// ours both speak, so that both get the same bytes.
enum class Protocol { kC10dLegacy, kC10dNewest, kRedis, kEcho };
Protocol parse_protocol(std::string_view name);  // Throws std::invalid_argument.

// How much of what comes back belongs to one request.
struct Answer {
  std::size_t bytes = 0;  // 0: up to and with the first newline.
};

// One request that is sent again and again by one client, which waits for its answer in between.
struct Exchange {
  std::string request;
  Answer answer;
};

// What a client sends before its first request, and what it is answered.
Exchange greeting(Protocol protocol);
// `op` is get, set or add (redis: INCR). A c10d SET has no answer, so a CHECK of the key follows in
// the same write: the round trip until the value is known to be there.
Exchange exchange(Protocol protocol, std::string_view op, std::string_view key,
                  std::string_view value);

// A connected, non-blocking socket to a server on this machine; throws std::system_error.
UniqueFd connect_to(int port);
// Sends all of it and waits for its answer; throws if the server closes.
void converse(int fd, const Exchange& exchange);

struct LoadResult {
  double seconds = 0;
  std::vector<double> times;  // Of each round trip, in seconds.
};

// Each client sends its request again as soon as it has its answer, all on this thread, for so many
// seconds. Every client has had a turn before the time begins.
LoadResult run_load(const std::vector<UniqueFd>& clients, const std::vector<Exchange>& exchanges,
                    double seconds);

// The time until all clients have left a barrier: by the server's BARRIER (newest dialect), or by a
// counter, a flag and WAIT, as PyTorch's clients make one where the server has none.
double run_barrier(const std::vector<UniqueFd>& clients, Protocol protocol, std::string_view name,
                   bool by_counter);

// Connections that send up to 255 random bytes and are reset, one after the other.
void churn(int port, std::size_t connections, std::uint64_t seed);

// Sends back what comes in, on the port that is printed first, until standard input ends: what a
// round trip costs where nothing is done.
void serve_echo();

}  // namespace ddp::bench
