#pragma once

#include <map>
#include <string>

namespace ddp {

// Means of what was logged, by name.
using MetricValues = std::map<std::string, double>;

}  // namespace ddp
