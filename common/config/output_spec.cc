#include "common/config/output_spec.h"

#include <algorithm>

namespace ddp::config {
namespace {

bool is_value(std::string_view text) {
  return text.size() == 1 && text[0] >= '0' && text[0] <= '3';
}

Error wrong_value(std::string_view value) {
  return make_error(Errc::kInvalidArgument,
                    "'{}' is not 0 (none), 1 (stdout), 2 (stderr) or 3 (both)", value);
}

}  // namespace

int StreamMap::of(Rank rank, int local_rank) const {
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->ranks.contains(entry->global ? rank : local_rank)) return entry->streams;
  }
  return others;
}

int StreamMap::any() const {
  int streams = others;
  for (const Entry& entry : entries) streams |= entry.streams;
  return streams;
}

Result<StreamMap> parse_stream_map(std::string_view text) {
  StreamMap map;
  if (text.find_first_of(":,-@") == std::string_view::npos) {
    if (!is_value(text)) return wrong_value(text);
    map.others = text[0] - '0';
    return map;
  }
  while (!text.empty()) {
    const auto colon = text.find(':');
    if (colon == std::string_view::npos) {
      return make_error(Errc::kInvalidArgument,
                        "'{}' has no value; write for example 0:1,8-15:3, or 3 for all workers",
                        text);
    }
    const bool global = text.starts_with('@');
    auto ranks = parse_rank_set(text.substr(global ? 1 : 0, colon - (global ? 1 : 0)));
    if (!ranks) return ranks.error();
    text.remove_prefix(colon + 1);
    const auto comma = text.find(',');
    const std::string_view value = text.substr(0, comma);
    if (!is_value(value)) return wrong_value(value);
    map.entries.push_back({std::move(*ranks), value[0] - '0', global});
    text.remove_prefix(value.size());
    if (text == ",") return make_error(Errc::kInvalidArgument, "nothing follows the last comma");
    if (!text.empty()) text.remove_prefix(1);
  }
  return map;
}

std::vector<std::string> split_filters(std::string_view text) {
  std::vector<std::string> items(1);
  while (!text.empty()) {
    const bool literal = text.starts_with(",,");
    if (text[0] == ',' && !literal) {
      items.emplace_back();
    } else {
      items.back() += text[0];
    }
    text.remove_prefix(literal ? 2 : 1);
  }
  std::erase(items, "");
  return items;
}

StreamPlaces places_of(const OutputSpec& spec, bool has_log_dir, Rank rank, int local_rank) {
  const bool unsaid = spec.redirects.none() && spec.tee.none();
  const int tee = unsaid ? kBothStreams : spec.tee.of(rank, local_rank);
  const int redirected = spec.redirects.of(rank, local_rank) & ~tee;
  const bool shown = (spec.local_ranks.empty() && spec.ranks.empty()) ||
                     spec.local_ranks.contains(local_rank) || spec.ranks.contains(rank);
  return {.file = has_log_dir ? tee | redirected : 0,
          .console = shown ? kBothStreams & ~redirected : 0};
}

std::string job_folder_name(std::string job_id) {
  std::replace(job_id.begin(), job_id.end(), '/', '_');
  if (job_id.empty() || job_id == "." || job_id == "..") job_id.insert(0, "job_");
  return job_id;
}

}  // namespace ddp::config
