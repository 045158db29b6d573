#include "agent/process/line_folder.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace ddp::agent {
namespace {

// About how much memory a held line takes besides its text.
constexpr std::size_t kOverhead = 256;

}  // namespace

void LineFolder::begin(int members) {
  DDP_CHECK(held_.empty(), "{} lines are held", held_.size());
  last_.assign(static_cast<std::size_t>(members), 0);
}

void LineFolder::add(TimePoint now, int member, std::string_view text) {
  std::uint64_t& last = last_.at(static_cast<std::size_t>(member));
  const auto equal = by_text_.find(text);
  if (equal != by_text_.end()) {
    const auto next = std::upper_bound(equal->second.begin(), equal->second.end(), last);
    if (next != equal->second.end()) {
      auto& members = held_[static_cast<std::size_t>(*next - first_)].line.members;
      members.insert(std::upper_bound(members.begin(), members.end(), member), member);
      last = *next;
      return;
    }
  }
  held_.push_back({{std::string(text), {member}}, now + window_});
  last = first_ + held_.size() - 1;
  by_text_[held_.back().line.text].push_back(last);
  bytes_ += text.size() + kOverhead;
}

LineFolder::Line LineFolder::pop() {
  const auto equal = by_text_.find(held_.front().line.text);
  equal->second.pop_front();  // Lines of one text leave in the order of their numbers, too.
  if (equal->second.empty()) {
    by_text_.erase(equal);
  } else {
    // The key is a view of this line, which leaves. The next equal line's text takes its place.
    auto node = by_text_.extract(equal);
    node.key() = held_[static_cast<std::size_t>(node.mapped().front() - first_)].line.text;
    by_text_.insert(std::move(node));
  }
  Line line = std::move(held_.front().line);
  held_.pop_front();
  ++first_;
  bytes_ -= line.text.size() + kOverhead;
  return line;
}

std::vector<LineFolder::Line> LineFolder::take(TimePoint now) {
  std::vector<Line> lines;
  while (!held_.empty() && (held_.front().line.members.size() == last_.size() ||
                            held_.front().deadline <= now || bytes_ > max_bytes_)) {
    lines.push_back(pop());
  }
  return lines;
}

std::vector<LineFolder::Line> LineFolder::take_all() {
  std::vector<Line> lines;
  while (!held_.empty()) lines.push_back(pop());
  return lines;
}

std::optional<TimePoint> LineFolder::next_deadline() const {
  if (held_.empty()) return std::nullopt;
  return held_.front().deadline;
}

}  // namespace ddp::agent
