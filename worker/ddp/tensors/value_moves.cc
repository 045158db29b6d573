#include "worker/ddp/tensors/value_moves.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "worker/ddp/tensors/tensors.h"
#include "worker/runtime/worker_environment.h"

namespace ddp {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

struct Piece {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

// One memcpy, cut up.
void append_pieces(const ValueMove& move, std::vector<Piece>& pieces) {
  auto* to = static_cast<std::byte*>(move.to.data_ptr());
  const auto* from = static_cast<const std::byte*>(move.from.data_ptr());
  for (std::size_t left = move.to.nbytes(); left > 0;) {
    const std::size_t bytes = std::min(left, kPieceBytes);
    pieces.push_back({to, from, bytes});
    to += bytes;
    from += bytes;
    left -= bytes;
  }
}

}  // namespace

int loading_threads() {
  const std::optional<std::string> workers = process_variable("LOCAL_WORLD_SIZE");
  const int sharing = workers ? std::max(1, std::atoi(workers->c_str())) : 1;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / sharing);
}

void move_values(const std::vector<ValueMove>& moves) {
  const at::NoGradGuard no_grad;
  std::vector<Piece> pieces;
  for (const ValueMove& move : moves) {
    if (!is_one_copy(move.to, move.from)) {
      copy_values(move.to, move.from);
      continue;
    }
    append_pieces(move, pieces);
    mark_changed(move.to);
  }
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces.size(); i = next++)
      std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
  };
  std::vector<std::thread> others;
  const std::size_t useful = pieces.size() / 4;
  for (std::size_t i = 1; i < std::min(static_cast<std::size_t>(loading_threads()), useful); ++i)
    others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace ddp
