#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ddp {

// How far a load has come, on one rank.
struct LoadProgress {
  std::uint64_t bytes = 0;  // Read and checked by this rank.
  std::uint64_t total = 0;  // How much this rank has to read, at most.
  double seconds = 0;
};

// What is loaded from a checkpoint, and how. The same on all ranks, except `progress`.
struct LoadOptions {
  // true: registered state that the checkpoint lacks is kMismatch, and so is a module's tensor that
  // the model lacks. false: what both have is loaded, the rest stays as it is, and
  // LoadReport::notes has a line for each such item: a missing tensor, one of another type or
  // shape, an optimizer of another type or with other parameters, a missing value, generator or
  // communication hook. State that its owner's load() refuses is an error in either case.
  bool strict = true;
  // Only tensors of modules whose name (without "module/", such as "net/conv1.weight") one of these
  // covers: `*` is any characters, `?` one. Empty: all. If not empty, only modules are loaded: a
  // part of a model is a start for another training, not the middle of this one. A pattern that
  // covers nothing is kMismatch, or a note if not strict.
  std::vector<std::string> names = {};
  // Called on this rank during the load, whenever `progress_every` seconds have passed since the
  // last call or the beginning; so a short load never calls it. May be empty.
  std::function<void(const LoadProgress&)> progress = {};
  double progress_every = 5;
};

}  // namespace ddp
