#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "worker/runtime/flight_recorder.h"

// Measures the cost of an event of the flight recorder: 5,000 times, 200 operations are issued,
// started and finished. Prints the median of the nanoseconds per event as JSON. "message_ns" is
// that of a message that is done at once, which is a single event;
// "traced_ns" that of an operation while somebody asks for a trace.
int main() {
  using Clock = std::chrono::steady_clock;
  constexpr int kRuns = 5'000;
  constexpr int kOperations = 200;  // Short enough that few runs are interrupted.
  constexpr int kEvents = 3;
  void* memory = ::mmap(nullptr, ddp::wire::kFlightBytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  const auto trace = std::make_unique<ddp::wire::TraceRing>();  // Nobody asks.
  ddp::runtime::FlightRecorder recorder(static_cast<std::byte*>(memory), 0, "world", trace.get());
  std::vector<double> each;
  std::vector<double> traced;
  std::vector<double> message;
  std::vector<double> clock;
  for (int run = 0; run < kRuns; ++run) {
    for (std::vector<double>* times : {&each, &traced}) {
      trace->on = times == &traced;
      const auto begin = Clock::now();
      for (int i = 0; i < kOperations; ++i) {
        const auto slot = recorder.issued(
            {static_cast<std::uint64_t>(i), 1'000, -1, "f32", "all_reduce", "bucket 3 (layer4)"});
        recorder.started(slot);
        recorder.finished(slot, true);
      }
      const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
      times->push_back(took.count() / kOperations / kEvents);
    }
    trace->on = 0;
    const auto message_begin = Clock::now();
    for (int i = 0; i < kOperations; ++i) {
      recorder.message(
          {static_cast<std::uint64_t>(i), 1'000, 1, "f32", "send", "activations", 4, 7},
          Clock::now(), ddp::wire::FlightState::kDone);
    }
    const std::chrono::duration<double, std::nano> message_took = Clock::now() - message_begin;
    message.push_back(message_took.count() / kOperations);
    const auto clock_begin = Clock::now();
    for (int i = 0; i < kOperations; ++i) (void)Clock::now();
    const std::chrono::duration<double, std::nano> clock_took = Clock::now() - clock_begin;
    clock.push_back(clock_took.count() / kOperations);
  }
  std::sort(each.begin(), each.end());
  std::sort(traced.begin(), traced.end());
  std::sort(message.begin(), message.end());
  std::sort(clock.begin(), clock.end());
  std::printf("{\"ns\": %.2f, \"traced_ns\": %.2f, \"message_ns\": %.2f, \"clock_ns\": %.2f}\n",
              each[kRuns / 2], traced[kRuns / 2], message[kRuns / 2], clock[kRuns / 2]);
}
