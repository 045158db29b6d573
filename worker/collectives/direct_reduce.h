#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "worker/collectives/entry.h"
#include "worker/collectives/kernels.h"
#include "worker/collectives/stream.h"

namespace ddp::collectives {

// all_reduce and reduce in one node whose buffers are all registered. After the entry each rank
// owns a slice, reads it from every rank's input and writes the result into every output (or only
// the root's). That moves each byte once from and once to memory, the least possible. A rank has
// finished when all ranks have said that they no longer use others' memory.
class DirectReduce {
 public:
  // number: the operation's number in the segment. memory: must outlive this object.
  DirectReduce(transport::Transport& transport, const Operation& operation, const Entry& entry,
               std::uint32_t number, std::pmr::memory_resource* memory);
  transport::Advance step();

 private:
  transport::Advance reduce_some();

  transport::Transport& transport_;
  Reduction reduction_;
  std::uint32_t number_;
  std::size_t element_;
  std::size_t next_;
  std::size_t end_;
  bool told_ = false;
  int others_done_ = 0;
  std::pmr::vector<const std::byte*> inputs_;
  std::pmr::vector<std::byte*> outputs_;
  std::pmr::vector<const std::byte*> sources_;  // At the current block.
  std::pmr::vector<std::byte*> targets_;
  std::pmr::vector<RankRange> ranges_;
  std::pmr::vector<double> factors_;
};

}  // namespace ddp::collectives
