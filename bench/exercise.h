#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "worker/runtime/process_group.h"

namespace ddp::bench {

// Names are those of the --op flag. Where an operation has a root, it is rank 0.
enum class Op {
  kAllReduce,      // all_reduce: in place.
  kBroadcast,      // broadcast
  kReduce,         // reduce: in place.
  kAllGather,      // all_gather
  kReduceScatter,  // reduce_scatter
  kGather,         // gather
  kScatter,        // scatter
  kAllToAll,       // all_to_all
  kSendRecv,       // send_recv: from rank 0 to rank 1 and back; half of that is its time.
};

// Throws std::invalid_argument that names the unknown text.
Op parse_op(const std::string& name);
DType parse_dtype(const std::string& name);

// Options of an operation that is compared with a blocking call of a peer.
OpOptions at_once();

// One operation with this rank's buffers, to be repeated. `bytes` is the input of a rank, or for
// scatter the output of a rank.
//
// One thread. Throws what ProcessGroup throws, and std::runtime_error if registered memory is asked
// for and there is not enough of it.
class Exercise {
 public:
  Exercise(ProcessGroup& group, Op op, DType type, bool registered, std::size_t bytes);

  // Rewrites all memory of this rank, as training does between two steps: inputs with the run's
  // pattern, outputs with zeros.
  void dirty(unsigned run);
  // The operation, from its issue to its end on this rank. Does not allocate.
  void execute();
  // Whether this rank's outputs are right: all elements, or a few.
  bool right(unsigned run, bool all) const;

  // What one execute() is made of, for operations that are measured twice at a time.
  double parts() const { return op_ == Op::kSendRecv ? 2 : 1; }

 private:
  std::shared_ptr<std::byte> memory(bool registered, std::size_t bytes);
  void execute_send_recv();
  float expected(unsigned run, std::size_t index) const;
  float sum(unsigned run, std::size_t index) const;

  ProcessGroup& group_;
  const Op op_;
  const std::size_t element_;
  std::size_t per_rank_ = 0;  // Elements that go from one rank to one other.
  std::shared_ptr<std::byte> in_memory_;
  std::shared_ptr<std::byte> out_memory_;  // Null in place.
  Buffer in_;
  Buffer out_;
};

}  // namespace ddp::bench
