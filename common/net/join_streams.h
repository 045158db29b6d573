#pragma once

#include <memory>

#include "common/net/any_stream.h"

namespace ddp::net {

// Passes on the bytes of each stream to the other one, until one of them ends; then the other one
// ends, too, once it has sent what it has. While one takes no bytes, the other one is not read.
// Both must be on the same thread, without a handler so far, and they keep each other.
void join_streams(const std::shared_ptr<Stream>& one, const std::shared_ptr<Stream>& other);

}  // namespace ddp::net
