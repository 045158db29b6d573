#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "bench/program.h"
#include "bench/samples.h"
#include "bench/store_load.h"

// The load generator for TCP stores: sends the same requests to any server that speaks one of the
// protocols. Prints a JSON line for each operation and number of clients.
namespace ddp::bench {
namespace {

namespace po = boost::program_options;

struct Options {
  std::string protocol;
  int port = 0;
  std::string ops;
  std::string clients;
  std::size_t idle = 0;
  std::size_t value_bytes = 0;
  double seconds = 0;
  std::size_t barrier = 0;
  bool by_counter = false;
  int turns = 0;
  std::size_t churn = 0;
  std::uint64_t seed = 0;
};

void raise_descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Connections after their greeting.
std::vector<UniqueFd> connect_all(Protocol protocol, int port, std::size_t count) {
  std::vector<UniqueFd> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(connect_to(port));
    converse(out.back().get(), greeting(protocol));
  }
  return out;
}

void measure(const Options& options) {
  const Protocol protocol = parse_protocol(options.protocol);
  const std::string value(options.value_bytes, 'v');
  const std::vector<UniqueFd> idle = connect_all(protocol, options.port, options.idle);
  for (const std::size_t count : parse_sizes(options.clients)) {
    const std::vector<UniqueFd> clients = connect_all(protocol, options.port, count);
    for (const std::string& op : parse_names(options.ops)) {
      std::vector<Exchange> exchanges;
      for (std::size_t i = 0; i < count; ++i) {
        const std::string key = fmt::format("/{}-{:06}", op, i);
        // So that a get finds a value.
        if (op == "get") converse(clients[i].get(), exchange(protocol, "set", key, value));
        exchanges.push_back(exchange(protocol, op, key, value));
      }
      LoadResult load = run_load(clients, exchanges, options.seconds);
      const double per_second = static_cast<double>(load.times.size()) / load.seconds;
      const Summary times = summarize(load.times);
      std::printf(
          "{\"op\": \"%s\", \"clients\": %zu, \"idle\": %zu, \"per_second\": %.0f, "
          "\"seconds_each\": %.9f, \"median_s\": %.9f, \"p99_s\": %.9f}\n",
          op.c_str(), count, options.idle, per_second, 1 / per_second, times.median, times.p99);
    }
  }
}

void measure_barrier(const Options& options) {
  const Protocol protocol = parse_protocol(options.protocol);
  const std::vector<UniqueFd> clients = connect_all(protocol, options.port, options.barrier);
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::vector<double> times;
  for (int turn = 0; turn < options.turns; ++turn) {
    times.push_back(
        run_barrier(clients, protocol, fmt::format("/b{}-{}", now, turn), options.by_counter));
  }
  std::printf("{\"op\": \"barrier\", \"clients\": %zu, \"median_s\": %.9f}\n", options.barrier,
              summarize(times).median);
}

void run(int argc, char** argv) {
  Options options;
  po::options_description flags("bench-store: the same load for any store");
  flags.add_options()("help", "print this")(
      "echo", "be an echo server, for the shortest possible round trip")(
      "protocol", po::value(&options.protocol)->default_value("c10d-newest"),
      "c10d-newest, c10d-legacy, redis or echo")("port", po::value(&options.port),
                                                 "port of the server")(
      "op", po::value(&options.ops)->default_value("get,set,add"), "operations, comma separated")(
      "clients", po::value(&options.clients)->default_value("1,8,64"), "clients at a time")(
      "idle", po::value(&options.idle)->default_value(0), "connections that stay silent meanwhile")(
      "bytes", po::value(&options.value_bytes)->default_value(32), "size of a value")(
      "seconds", po::value(&options.seconds)->default_value(0.3), "time for each line")(
      "barrier", po::value(&options.barrier)->default_value(0),
      "instead, measure a barrier of so many connections")(
      "counter", po::bool_switch(&options.by_counter),
      "make the barrier of ADD and WAIT, as PyTorch's clients do")(
      "turns", po::value(&options.turns)->default_value(5), "barriers")(
      "churn", po::value(&options.churn)->default_value(0),
      "instead, make so many connections that send random bytes and are reset")(
      "seed", po::value(&options.seed)->default_value(1), "seed of the random bytes");
  po::variables_map given;
  po::store(po::parse_command_line(argc, argv, flags), given);
  po::notify(given);
  if (given.contains("help")) {
    std::printf("%s", (std::stringstream() << flags).str().c_str());
    return;
  }
  raise_descriptor_limit();
  if (given.contains("echo")) return serve_echo();
  if (options.port == 0) throw std::invalid_argument("--port is needed");
  if (options.churn > 0) return churn(options.port, options.churn, options.seed);
  if (options.barrier > 0) return measure_barrier(options);
  measure(options);
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-store", ddp::bench::run, argc, argv);
}
