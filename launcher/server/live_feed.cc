#include "launcher/server/live_feed.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "launcher/page/merge_patch.h"

namespace ddp::server {
namespace {

std::string event(std::string_view name, const nlohmann::json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, dump_json(data));
}

}  // namespace

LiveFeed::LiveFeed(asio::io_context& io, std::function<nlohmann::json()> document)
    : document_(std::move(document)), timer_(io) {}

const std::string& LiveFeed::whole() {
  if (whole_.empty()) whole_ = event("whole", last_);
  return whole_;
}

void LiveFeed::add(std::shared_ptr<net::ByteStream> stream) {
  browsers_.push_back({.stream = std::move(stream), .taken_at = Clock::now()});
  if (browsers_.size() == 1) return tick();
  Browser& newcomer = browsers_.back();
  newcomer.has_all = true;
  newcomer.stream->send(whole());
}

// Notes how much it has taken.
bool LiveFeed::takes_nothing(Browser& browser, TimePoint now) const {
  const std::size_t queued = browser.stream->queued_bytes();
  if (queued == 0 || queued < browser.queued) browser.taken_at = now;
  browser.queued = queued;
  return now - browser.taken_at > kPatience;
}

void LiveFeed::tick() {
  std::erase_if(browsers_, [](const Browser& browser) { return !browser.stream->is_open(); });
  whole_.clear();
  if (browsers_.empty()) {
    last_ = nullptr;
    return;
  }
  const TimePoint now = Clock::now();
  nlohmann::json document = document_();
  const std::string change = event("change", page::merge_patch(last_, document));
  last_ = std::move(document);
  for (Browser& browser : browsers_) {
    // The session hears of the end, and the daemon forgets it.
    if (takes_nothing(browser, now)) {
      browser.stream->close_after_writes();
    } else if (browser.queued > 0) {
      browser.has_all = false;
    } else if (std::exchange(browser.has_all, true)) {
      browser.stream->send(change);
    } else {
      browser.stream->send(whole());
    }
    browser.queued = browser.stream->queued_bytes();
  }
  timer_.after(kInterval, [this] { tick(); });
}

void LiveFeed::end() {
  for (const Browser& browser : browsers_) browser.stream->close_after_writes();
  browsers_.clear();
}

}  // namespace ddp::server
