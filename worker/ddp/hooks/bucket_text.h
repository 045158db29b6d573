#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "worker/ddp/averaging/grad_bucket.h"

namespace ddp {

// The name of a bucket, in errors and for the group: "bucket 3 (conv1.weight .. fc.bias)".
std::string bucket_text(const GradBucket& bucket);

// Names the parameters of a bucket, in their order: "conv1.weight..fc.bias#93f1a80c22d5e07b". The
// same in every process.
std::string bucket_key(const GradBucket& bucket);

// FNV-1a.
std::uint64_t hash_of(std::string_view text);

}  // namespace ddp
