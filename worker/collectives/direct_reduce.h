#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
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
  // `number` is the operation's in the segment; `memory` outlives this object.
  DirectReduce(Transport& transport, const Operation& operation, const Entry& entry,
               std::uint32_t number, std::pmr::memory_resource* memory);
  Advance step();

 private:
  Advance reduce_some();

  Transport& transport_;
  Reduction reduction_;
  std::uint32_t number_;
  std::size_t element_;
  std::size_t next_;
  std::size_t end_;
  bool told_ = false;
  int others_done_ = 0;
  std::pmr::vector<const std::byte*> inputs_;
  std::pmr::vector<std::byte*> outputs_;
  std::pmr::vector<const std::byte*> sources_;  // At the block that is reduced.
  std::pmr::vector<std::byte*> targets_;
  std::pmr::vector<RankRange> ranges_;
  std::pmr::vector<double> factors_;
};

}  // namespace ddp
