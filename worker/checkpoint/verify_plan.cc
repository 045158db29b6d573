#include "worker/checkpoint/verify_plan.h"

#include <map>
#include <string_view>

#include "worker/checkpoint/share_plan.h"

namespace ddp::checkpoint {

std::vector<const FileRecord*> files_to_verify(const Manifest& manifest, Rank rank,
                                               int world_size) {
  std::map<std::string_view, Rank> owners;  // kReplicated: not one rank's own.
  for (const TensorRecord& tensor : manifest.tensors) {
    const auto [owner, is_first] = owners.emplace(tensor.file, tensor.rank);
    if (!is_first && owner->second != tensor.rank) owner->second = kReplicated;
  }
  std::vector<Rank> verifiers(manifest.files.size(), kReplicated);
  std::vector<ShareItem> dealt;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const FileRecord& file = manifest.files[i];
    const auto owner = owners.find(file.name);
    if (owner != owners.end() && owner->second < world_size) verifiers[i] = owner->second;
    if (verifiers[i] == kReplicated) {
      dealt.push_back({.name = file.name, .bytes = file.bytes, .storage = 0, .pinned = false});
    }
  }
  const std::vector<Rank> ranks = deal_shares(dealt, world_size);
  std::vector<const FileRecord*> mine;
  std::size_t next = 0;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const Rank verifier = verifiers[i] == kReplicated ? ranks[next++] : verifiers[i];
    if (verifier == rank) mine.push_back(&manifest.files[i]);
  }
  return mine;
}

}  // namespace ddp::checkpoint
