#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "worker/transport/failure.h"
#include "worker/transport/segment_layout.h"

namespace ddp {

// The memory that the workers of one node share, mapped into this process: flags, doorbells,
// operation records, staging slots and the abort word. Processes map the agent's memfd; threads of
// one process, and processes forked after its creation, may share one object made by create().
//
// Thread safe. What attach() maps is backed at once, so that no page fault comes later.
class Segment {
 public:
  // Memory of its own, shared with threads and with children of fork.
  static Result<std::shared_ptr<Segment>> create(int local_size, Round round);
  // The memfd `fd` (not taken over) that the agent made. kProtocol or kMismatch if its header is
  // not what is expected, naming the field.
  static Result<std::shared_ptr<Segment>> attach(int fd, int local_size, Round round);

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  int local_size() const { return local_size_; }

  std::uint32_t flag(int local, Flag flag) const {
    return line(local, flag).load(std::memory_order_seq_cst);  // See Doorbell.
  }
  // Makes everything that this thread wrote before visible to whoever sees the value, and wakes
  // sleepers.
  void publish(int local, Flag flag, std::uint32_t value);

  Doorbell& doorbell(int local) const { return control(local).doorbell; }
  OperationSlot& operation(int local, std::uint32_t sequence) const {
    return control(local).operations[sequence % 2];
  }
  std::byte* input(int local, std::size_t chunk) const {
    return staging(local).input[chunk % kSlots];
  }
  std::byte* result(int local, std::size_t chunk) const {
    return staging(local).result[chunk % kSlots];
  }

  // Ends the round for every local rank; the first cause counts. Wakes all.
  void raise_abort(const Failure& cause);
  bool aborted() const { return header().abort.load(std::memory_order_acquire) != 0; }
  // The cause; only when aborted().
  Failure abort_cause() const;

 private:
  Segment(void* memory, std::size_t bytes, int local_size)
      : memory_(static_cast<std::byte*>(memory)), bytes_(bytes), local_size_(local_size) {}

  template <typename T>
  T& at(std::size_t offset) const {
    return *reinterpret_cast<T*>(memory_ + offset);
  }
  wire::ShmHeader& header() const { return at<wire::ShmHeader>(0); }
  SegmentControl& segment_control() const { return at<SegmentControl>(wire::kShmHeaderBytes); }
  RankControl& control(int local) const {
    return at<RankControl>(wire::kShmHeaderBytes + sizeof(SegmentControl) +
                           index(local) * sizeof(RankControl));
  }
  RankStaging& staging(int local) const {
    return at<RankStaging>(wire::kShmHeaderBytes + sizeof(SegmentControl) +
                           index(local_size_) * sizeof(RankControl) +
                           index(local) * sizeof(RankStaging));
  }
  std::atomic<std::uint32_t>& line(int local, Flag flag) const {
    return control(local).flags[static_cast<unsigned>(flag)].value;
  }
  static std::size_t index(int local) { return static_cast<std::size_t>(local); }
  void ring_all();

  std::byte* memory_;
  std::size_t bytes_;
  int local_size_;
};

}  // namespace ddp
