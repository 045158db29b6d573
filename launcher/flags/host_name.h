#pragma once

#include <string>
#include <string_view>

namespace ddp::flags {

// Why this text cannot be a host name, for example "a label is longer than 63 characters". Empty if
// it can be one. IPv6 addresses are not names.
std::string why_no_host(std::string_view name);

}  // namespace ddp::flags
