#pragma once

#include <string>
#include <string_view>

namespace ddp::run {

// Why no machine can have this name, whatever name service is asked: "a label is longer than 63
// characters". Empty: one may have it. IPv6 addresses are no names.
std::string why_no_host(std::string_view name);

}  // namespace ddp::run
