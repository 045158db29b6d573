#pragma once

#include <string_view>
#include <vector>

namespace ddp::config {

// `count` different ports that follow from a job's name alone, so that all its processes know them
// without talking. Two jobs on one machine seldom have a port in common. All are between 20000 and
// 31999, below the ports that systems assign to clients.
std::vector<int> derived_ports(std::string_view name, int count);

}  // namespace ddp::config
