#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"

namespace ddp {

// Durations of the parts of an iteration, in nanoseconds.
struct PassTimes {
  std::int64_t forward_compute = 0;
  std::int64_t backward_compute = 0;       // Until the last gradient.
  std::int64_t backward_comm = 0;          // From the first piece's launch until the last is done.
  std::int64_t backward_comm_overlap = 0;  // Of that, what lies within backward_compute.
};

// Takes the times of forward, backward and pieces of buckets: of the first ten iterations, then of
// one in every `rate`, and of all while this rank is traced. Reads no clock otherwise. Used by one
// thread at a time.
class PassTimer {
 public:
  // 1: every iteration.
  void set_rate(int rate);

  bool is_on() const { return is_on_; }
  std::uint64_t iterations() const { return iterations_; }
  // How many iterations the averages are of.
  std::uint64_t sampled() const { return sampled_; }
  const PassTimes& last() const { return last_; }
  PassTimes average() const;

  void begin_forward();
  void end_forward();
  // From here on each does nothing unless is_on() and a backward has begun. The first call of a
  // backward begins it.
  void begin_backward(std::size_t pieces);
  void gradient(std::size_t piece);
  void ready(std::size_t piece);
  void launched(std::size_t piece);
  void done(std::size_t piece);
  bool is_in_flight(std::size_t piece) const;
  void end_compute();
  // The backward is over. `names` are the pieces', of the form "BUCKET (PARAMETERS)".
  void end_backward(const std::vector<std::string>& names);

 private:
  struct Piece {
    TimePoint first, ready, launched, done;
  };
  bool is_taking() const { return is_on_ && in_backward_; }
  void trace_backward(const std::vector<std::string>& names, TimePoint end) const;

  int rate_ = 100;
  bool is_on_ = false;
  bool is_traced_ = false;  // In this iteration.
  bool in_backward_ = false;
  std::uint64_t iterations_ = 0;
  std::uint64_t sampled_ = 0;
  TimePoint forward_begin_, forward_end_, backward_begin_, compute_end_;
  std::vector<Piece> pieces_;
  PassTimes last_;
  PassTimes sum_;
};

}  // namespace ddp
