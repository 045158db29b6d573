#pragma once

#include <string>
#include <vector>

namespace ddp {

// Which parameters share a bucket, by name: buckets in the order of their reduction, parameters in
// the order in which they lie in it.
using BucketNames = std::vector<std::vector<std::string>>;

}  // namespace ddp
