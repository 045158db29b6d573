#include "worker/ddp/tensors/text_exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ddp {
namespace {

std::vector<std::int64_t> gather_numbers(ProcessGroup& group, std::int64_t mine,
                                         const std::string& tag) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather({&mine, 1, DType::kI64}, {all.data(), all.size(), DType::kI64}, {{}, tag})
      ->wait();
  return all;
}

// 0 for success.
std::int64_t code_number(const Result<void>& result) {
  if (result) return 0;
  const std::error_code code = result.error().code;
  const bool ours = code.category() == make_error_code(Errc::kIo).category();
  return ours ? code.value() : static_cast<std::int64_t>(Errc::kIo);
}

}  // namespace

std::vector<std::string> gather_texts(ProcessGroup& group, std::string_view mine,
                                      const std::string& tag) {
  if (group.size() == 1) return {std::string(mine)};
  const std::vector<std::int64_t> sizes =
      gather_numbers(group, static_cast<std::int64_t>(mine.size()), tag);
  const auto longest = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<std::string> texts(sizes.size());
  if (longest == 0) return texts;
  std::string padded(mine);
  padded.resize(longest);
  std::string all(longest * sizes.size(), '\0');
  group
      .all_gather({padded.data(), padded.size(), DType::kU8}, {all.data(), all.size(), DType::kU8},
                  {{}, tag})
      ->wait();
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    texts[rank] = all.substr(rank * longest, static_cast<std::size_t>(sizes[rank]));
  }
  return texts;
}

std::string broadcast_text(ProcessGroup& group, std::string_view mine, Rank root,
                           const std::string& tag) {
  if (group.size() == 1) return std::string(mine);
  auto size = static_cast<std::int64_t>(mine.size());
  group.broadcast({&size, 1, DType::kI64}, root, {{}, tag})->wait();
  std::string text = group.rank() == root ? std::string(mine) : std::string();
  text.resize(static_cast<std::size_t>(size));
  if (!text.empty()) {
    group.broadcast({text.data(), text.size(), DType::kU8}, root, {{}, tag})->wait();
  }
  return text;
}

Result<void> agree(ProcessGroup& group, const Result<void>& mine, const std::string& tag) {
  if (group.size() == 1) return mine;
  const std::vector<std::int64_t> codes = gather_numbers(group, code_number(mine), tag);
  const auto failed =
      std::find_if(codes.begin(), codes.end(), [](std::int64_t code) { return code != 0; });
  if (failed == codes.end()) return {};
  const auto rank = static_cast<Rank>(failed - codes.begin());
  const std::string message =
      broadcast_text(group, mine ? std::string() : mine.error().message, rank, tag);
  return make_error(static_cast<Errc>(*failed), "rank {}: {}", rank, message);
}

}  // namespace ddp
