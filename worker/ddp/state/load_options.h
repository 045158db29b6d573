#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ddp {

// How far a load has come, on one rank.
struct LoadProgress {
  std::uint64_t bytes = 0;  // Read and checked by this rank.
  std::uint64_t total = 0;  // That it has to, at most.
  double seconds = 0;
};

// What is loaded of a checkpoint, and how. The same on all ranks, but for `progress`.
struct LoadOptions {
  // true: what is registered and the checkpoint lacks is kMismatch, as is a tensor of a module that
  // the model lacks. false: what both have is loaded, the rest stays as it is, and each such item
  // is one of LoadReport::notes: a missing tensor, one of another type or shape, an optimizer of
  // another type or with other parameters, a missing value, generator or communication hook. State
  // that its owner's load() refuses is an error nevertheless.
  bool strict = true;
  // Only tensors of modules whose name (without "module/", such as "net/conv1.weight") one of these
  // covers: `*` is any characters, `?` one. Empty: all. If it is not empty, nothing but modules is
  // loaded: a part of a model is a start for another training, not the middle of this one. One that
  // covers nothing is kMismatch, or a note if not strict.
  std::vector<std::string> names = {};
  // Called on this rank, from within the load, when `progress_every` seconds have passed since the
  // last call or the beginning, so never in a short load. May be empty.
  std::function<void(const LoadProgress&)> progress = {};
  double progress_every = 5;
};

}  // namespace ddp
