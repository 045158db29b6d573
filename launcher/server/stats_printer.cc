#include "launcher/server/stats_printer.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

namespace ddp::server {
namespace {

void print(const std::string& line) {
  std::fputs(("stats: " + line + "\n").c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

std::string stats_line(const StoreFigures& before, const StoreFigures& now, Duration between) {
  const double seconds = static_cast<double>(std::max<Duration::rep>(between.count(), 1)) / 1'000;
  const std::uint64_t served = now.all_requests() - before.all_requests();
  std::string line =
      fmt::format("{:.1f} s, {} clients, {} wait, {} keys, {} bytes, {} requests, {:.0f} a second",
                  seconds, now.connections, now.waits, now.keys, now.bytes, served,
                  static_cast<double>(served) / seconds);
  for (std::size_t op = 0; op < now.requests.size(); ++op) {
    const std::uint64_t count = now.requests[op] - before.requests[op];
    if (count > 0) {
      line += fmt::format(", {} {}", wire::c10d::op_name(static_cast<wire::c10d::Op>(op)), count);
    }
  }
  return line;
}

StatsPrinter::StatsPrinter(asio::io_context& io, const Server& server, Duration interval)
    : server_(server),
      interval_(interval),
      timer_(io),
      began_(Clock::now()),
      looked_(began_),
      last_(server.store_figures()) {
  if (interval_.count() > 0) print_later();
}

StatsPrinter::~StatsPrinter() {
  const auto age = std::chrono::duration_cast<Duration>(Clock::now() - began_);
  print("in all " + stats_line({}, server_.store_figures(), age));
}

void StatsPrinter::print_later() {
  timer_.at(looked_ + interval_, [this] {
    const TimePoint now = Clock::now();
    const StoreFigures figures = server_.store_figures();
    print(stats_line(last_, figures, std::chrono::duration_cast<Duration>(now - looked_)));
    last_ = figures;
    looked_ = now;
    print_later();
  });
}

}  // namespace ddp::server
