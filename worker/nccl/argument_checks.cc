#include "worker/nccl/argument_checks.h"

#include <stdexcept>

#include <fmt/format.h>

#include "worker/collectives/operation.h"

namespace ddp::nccl {

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

void require_options(const NcclGroupOptions& options) {
  require(options.size > 0 && options.rank >= 0 && options.rank < options.size,
          fmt::format("NCCL group '{}': rank {} is not in a group of size {}", options.name,
                      options.rank, options.size));
}

void require_data(DeviceOpKind kind, const Buffer& buffer) {
  require(buffer.data != nullptr || buffer.count == 0,
          fmt::format("{}: the buffer of {} elements has no address", name_of(kind), buffer.count));
}

void require_same_type(DeviceOpKind kind, const Buffer& in, const Buffer& out) {
  require(in.type == out.type, fmt::format("{}: input of {} and output of {}", name_of(kind),
                                           name_of(in.type), name_of(out.type)));
}

void require_count(DeviceOpKind kind, const char* what, std::size_t got, std::size_t needed) {
  require(got == needed, fmt::format("{}: {} of {} elements, but {} are needed", name_of(kind),
                                     what, got, needed));
}

void require_reduction(DeviceOpKind kind, DType type, const ReduceOp& op) {
  const bool bits =
      op.kind() == ReduceOp::kBand || op.kind() == ReduceOp::kBor || op.kind() == ReduceOp::kBxor;
  require(!bits, fmt::format("{}: NCCL has no {}; use a host group, or min and max of single bits",
                             name_of(kind), name_of(op.kind())));
  require(valid(type, op.kind()), fmt::format("{}: {} of {} has no exact value; use a sum",
                                              name_of(kind), name_of(op.kind()), name_of(type)));
}

void require_rank(DeviceOpKind kind, Rank rank, int size) {
  require(rank >= 0 && rank < size,
          fmt::format("{}: rank {} is not in 0..{}", name_of(kind), rank, size - 1));
}

void require_members(std::span<const Rank> ranks, int size) {
  require(!ranks.empty(), "new_group: the list of ranks is empty");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    require(ranks[i] >= 0 && ranks[i] < size,
            fmt::format("new_group: rank {} is not in 0..{}", ranks[i], size - 1));
    require(i == 0 || ranks[i] > ranks[i - 1],
            "new_group: the ranks must be in ascending order, each once");
  }
}

}  // namespace ddp::nccl
