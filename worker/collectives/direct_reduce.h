#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/collectives/entry.h"
#include "worker/collectives/kernels.h"
#include "worker/collectives/stream.h"

namespace ddp {

// all_reduce and reduce of one node whose buffers are all registered: after the entry each rank
// owns a slice, reads it from every rank's input and writes the result into every (or the root's)
// output. That moves each byte once from and once to memory, which is the least there is. A rank is
// through when all have said that they touch nobody's memory any more.
class DirectReduce {
 public:
  // `number` is the operation's in the segment.
  DirectReduce(Transport& transport, const Operation& operation, const Entry& entry,
               std::uint32_t number);
  Progress step();

 private:
  Progress reduce_some();

  Transport& transport_;
  Reduction reduction_;
  std::uint32_t number_;
  std::size_t element_;
  std::size_t next_;
  std::size_t end_;
  bool told_ = false;
  int others_done_ = 0;
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::vector<const std::byte*> sources_;  // At the block that is reduced.
  std::vector<std::byte*> targets_;
  std::vector<RankRange> ranges_;
  std::vector<double> factors_;
};

}  // namespace ddp
