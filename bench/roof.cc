// bench-roof: measures the limits of the machine, as a yardstick for bench-collectives.
//
// --probe prints the round trip of a flag between two threads and the bandwidth of copying with one
// and with two threads (bytes read and written). They show how close the cores are to each other.
//
// Otherwise it measures the all-reduce of registered memory without its synchronisation: every
// thread sums its slice of all threads' buffers and stores it to all of them, with the kernel of
// worker/collectives, in private memory. Each thread rewrites its buffer before each run, and the
// threads begin together. The times and the lines are those of bench-collectives.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <boost/program_options.hpp>
#include <immintrin.h>

#include "bench/pattern.h"
#include "bench/samples.h"
#include "common/base/clock.h"
#include "worker/collectives/kernels.h"

namespace ddp::bench {
namespace {

namespace po = boost::program_options;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLine = 128;  // Slices begin at pairs of cache lines.
constexpr int kWarmups = 3;

using Memory = std::unique_ptr<std::byte, decltype(&std::free)>;

Memory make_memory(std::size_t bytes) {
  const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kPage, rounded)), &std::free);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory.get(), 1, rounded);
  return memory;
}

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Runs `work(thread number)` on that many threads; rethrows an exception of one of them.
template <typename Work>
void on_threads(int count, Work work) {
  std::exception_ptr thrown;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int number = 0; number < count; ++number) {
    threads.emplace_back([&, number] {
      try {
        work(number);
      } catch (...) {
        const std::lock_guard lock(mutex);
        thrown = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (thrown) std::rethrow_exception(thrown);
}

// Nanoseconds for a flag to go to another thread and for the answer to come back: the best of
// several batches, because a pre-empted thread spoils a whole batch.
double round_trip_ns() {
  constexpr int kBatches = 400;
  constexpr int kTrips = 50;
  struct alignas(kLine) Flag {
    std::atomic<int> value{0};
  };
  Flag there;
  Flag back;
  double best = 1e9;
  on_threads(2, [&](int number) {
    int trip = 0;
    for (int batch = 0; batch < kBatches; ++batch) {
      const TimePoint begin = Clock::now();
      for (int i = 0; i < kTrips; ++i) {
        ++trip;
        Flag& mine = number == 0 ? there : back;
        const Flag& other = number == 0 ? back : there;
        if (number == 0) mine.value.store(trip, std::memory_order_release);
        int spins = 0;
        while (other.value.load(std::memory_order_acquire) < trip) {
          if (++spins % 4096 == 0) std::this_thread::yield();
          _mm_pause();
        }
        if (number != 0) mine.value.store(trip, std::memory_order_release);
      }
      if (number == 0) best = std::min(best, seconds_since(begin) / kTrips * 1e9);
    }
  });
  return best;
}

// Bytes read and written per nanosecond by threads that copy 64 MiB each: the median of nine.
double copy_gb_s(int threads) {
  constexpr std::size_t kBytes = 64u << 20;
  constexpr int kRounds = 9;
  std::vector<double> rates;
  std::vector<double> took(static_cast<std::size_t>(threads));
  std::barrier together(threads);
  on_threads(threads, [&](int number) {
    const Memory from = make_memory(kBytes);
    const Memory to = make_memory(kBytes);
    for (int round = 0; round < kRounds; ++round) {
      together.arrive_and_wait();
      const TimePoint begin = Clock::now();
      std::memcpy(to.get(), from.get(), kBytes);
      took[static_cast<std::size_t>(number)] = seconds_since(begin);
      together.arrive_and_wait();
      if (number != 0) continue;
      const double slowest = *std::max_element(took.begin(), took.end());
      rates.push_back(2e-9 * static_cast<double>(kBytes) * threads / slowest);
    }
  });
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

void probe() {
  std::printf(R"({"round_trip_ns": %.0f, "memcpy_1_gb_s": %.1f, "memcpy_2_gb_s": %.1f})"
              "\n",
              round_trip_ns(), copy_gb_s(1), copy_gb_s(2));
}

// The buffers of all threads and their common measurement.
class Roof {
 public:
  Roof(int threads, std::size_t bytes, double budget_s)
      : threads_(threads),
        count_(std::max<std::size_t>(1, bytes / sizeof(float))),
        budget_s_(budget_s) {
    for (int number = 0; number < threads; ++number) {
      memory_.push_back(make_memory(count_ * sizeof(float)));
      buffers_.push_back(memory_.back().get());
      ranges_.push_back({number, number + 1});
      times_.emplace_back().reserve(kMostRuns);
    }
  }

  std::string line(std::size_t bytes) {
    on_threads(threads_, [this](int number) { run(number); });
    std::vector<double> all;
    for (const std::vector<double>& times : times_) {
      all.insert(all.end(), times.begin(), times.end());
    }
    return json_line("roof", "f32", "private", bytes, times_[0], longest(all, times_[0].size()));
  }

 private:
  void run(int number) {
    const collectives::FloatEnvironment environment;
    std::vector<double>& times = times_[static_cast<std::size_t>(number)];
    TimePoint started = Clock::now();
    for (int run = -kWarmups;; ++run) {
      fill_pattern(buffers_[static_cast<std::size_t>(number)], count_, sizeof(float), number,
                   static_cast<unsigned>(run + kWarmups));
      wait_for_all();
      const TimePoint begin = Clock::now();
      sum_slice(number);
      const double took = seconds_since(begin);
      if (run < 0) {
        started = Clock::now();
      } else {
        times.push_back(took);
        if (number == 0) more_ = measure_on(times.size(), seconds_since(started), budget_s_);
      }
      wait_for_all();
      if (run == -kWarmups) verify(number, 0);
      if (!more_) return;
      wait_for_all();
    }
  }

  // Sleeping in a barrier would put a wake-up into the difference between the threads' beginnings.
  void wait_for_all() {
    const int turn = arrivals_.fetch_add(1, std::memory_order_acq_rel) / threads_ + 1;
    for (int spins = 1; arrivals_.load(std::memory_order_acquire) < turn * threads_; ++spins) {
      if (spins % 256 == 0) std::this_thread::yield();
      _mm_pause();
    }
  }

  void sum_slice(int number) {
    const std::size_t step = kLine / sizeof(float);
    const std::size_t units = (count_ + step - 1) / step;
    const auto at = [&](int slice) {
      return std::min(count_, units * static_cast<std::size_t>(slice) /
                                  static_cast<std::size_t>(threads_) * step);
    };
    const std::size_t begin = at(number);
    const std::size_t end = at(number + 1);
    constexpr int kMost = 64;
    const std::byte* sources[kMost];
    std::byte* targets[kMost];
    const auto used = static_cast<std::size_t>(threads_);
    for (std::size_t i = 0; i < used; ++i) {
      targets[i] = buffers_[i] + begin * sizeof(float);
      sources[i] = targets[i];
    }
    collectives::reduce({}, ranges_, {sources, used}, {targets, used}, end - begin);
  }

  void verify(int number, unsigned run) const {
    for (std::size_t index = 0; index < count_; ++index) {
      float sum = 0;
      for (int thread = 0; thread < threads_; ++thread) sum += pattern(thread, run, index);
      const std::byte* own = buffers_[static_cast<std::size_t>(number)];
      if (element_at(own, sizeof(float), index) != sum) {
        std::fprintf(stderr, "bench-roof: thread %d, element %zu is wrong\n", number, index);
        std::_Exit(1);  // The other threads wait for this one.
      }
    }
  }

  const int threads_;
  const std::size_t count_;
  const double budget_s_;
  std::vector<Memory> memory_;
  std::vector<std::byte*> buffers_;
  std::vector<RankRange> ranges_;
  std::vector<std::vector<double>> times_;
  std::atomic<int> arrivals_{0};
  bool more_ = true;  // Written by thread 0 between two meetings.
};

int main(int argc, char** argv) {
  po::options_description flags("usage: bench-roof --probe | [FLAG...]");
  flags.add_options()                   //
      ("help", "this text")             //
      ("probe", "measure the machine")  //
      ("threads", po::value<int>()->default_value(2), "1 to 64")(
          "seconds", po::value<double>()->default_value(0.2), "time for each measurement")(
          "bytes", po::value<std::string>()->default_value("26214400"), "of a buffer, with commas");
  po::variables_map given;
  po::store(po::parse_command_line(argc, argv, flags), given);
  if (given.count("help") != 0) {
    std::cout << flags;
  } else if (given.count("probe") != 0) {
    probe();
  } else {
    for (const std::size_t bytes : parse_sizes(given["bytes"].as<std::string>())) {
      Roof roof(std::clamp(given["threads"].as<int>(), 1, 64), bytes,
                given["seconds"].as<double>());
      std::puts(roof.line(bytes).c_str());
    }
  }
  return 0;
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  try {
    return ddp::bench::main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench-roof: %s\n", error.what());
    return 1;
  }
}
