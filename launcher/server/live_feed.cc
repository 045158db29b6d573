#include "launcher/server/live_feed.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "launcher/page/merge_patch.h"

namespace ddp::server {
namespace {

std::string event(std::string_view name, const nlohmann::json& data) {
  // Names come from agents and need not be UTF-8.
  return fmt::format("event: {}\ndata: {}\n\n", name,
                     data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

LiveFeed::LiveFeed(asio::io_context& io, std::function<nlohmann::json()> document)
    : document_(std::move(document)), timer_(io) {}

void LiveFeed::add(std::shared_ptr<net::ByteStream> stream) {
  browsers_.push_back({.stream = std::move(stream), .taken_at = Clock::now()});
  if (browsers_.size() == 1) return tick();
  Browser& newcomer = browsers_.back();
  newcomer.has_all = true;
  newcomer.stream->send(event("whole", last_));
}

void LiveFeed::tick() {
  std::erase_if(browsers_, [](const Browser& browser) { return !browser.stream->is_open(); });
  if (browsers_.empty()) {
    last_ = nullptr;
    return;
  }
  const TimePoint now = Clock::now();
  nlohmann::json document = document_();
  const std::string change = event("change", page::merge_patch(last_, document));
  last_ = std::move(document);
  std::string whole;
  for (Browser& browser : browsers_) {
    if (browser.stream->queued_bytes() > 0) {
      browser.has_all = false;
      if (now - browser.taken_at > kPatience) browser.stream->close();
      continue;
    }
    browser.taken_at = now;
    if (std::exchange(browser.has_all, true)) {
      browser.stream->send(change);
      continue;
    }
    if (whole.empty()) whole = event("whole", last_);
    browser.stream->send(whole);
  }
  timer_.after(kInterval, [this] { tick(); });
}

}  // namespace ddp::server
