#include "worker/ddp/hooks/bucket_text.h"

#include <fmt/format.h>

#include "common/base/fnv1a.h"

namespace ddp {

std::string bucket_text(const GradBucket& bucket) {
  const auto& names = bucket.names();
  if (names.empty()) return fmt::format("bucket {}", bucket.index());
  if (names.size() == 1) return fmt::format("bucket {} ({})", bucket.index(), names.front());
  return fmt::format("bucket {} ({} .. {})", bucket.index(), names.front(), names.back());
}

std::string bucket_key(const GradBucket& bucket) {
  std::string all;
  for (const std::string& name : bucket.names()) all += name + '\n';
  return fmt::format("{}..{}#{:016x}", bucket.names().front(), bucket.names().back(), hash_of(all));
}

std::uint64_t hash_of(std::string_view text) { return fnv1a(text); }

}  // namespace ddp
