#include "launcher/server/live_feed.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <asio/post.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "launcher/page/merge_patch.h"

namespace ddp::server {
namespace {

// How often it is looked whether the last event has left.
constexpr Duration kEndingLook{5};

std::string event(std::string_view name, const nlohmann::json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, dump_json(data));
}

}  // namespace

LiveFeed::LiveFeed(asio::io_context& io, std::function<nlohmann::json()> document)
    : io_(io), document_(std::move(document)), timer_(io), ending_look_(io) {}

LiveFeed::~LiveFeed() {
  // Who waits for this goes on without it.
  if (finished_) asio::post(io_, std::move(finished_));
}

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

void LiveFeed::forget_closed() {
  std::erase_if(browsers_, [](const Browser& browser) { return !browser.stream->is_open(); });
}

std::string LiveFeed::change_to(nlohmann::json document) {
  std::string change = event("change", page::merge_patch(last_, document));
  last_ = std::move(document);
  whole_.clear();
  return change;
}

void LiveFeed::tick() {
  forget_closed();
  if (browsers_.empty()) {
    whole_.clear();
    last_ = nullptr;
    return;
  }
  const TimePoint now = Clock::now();
  const std::string change = change_to(document_());
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

void LiveFeed::finish(const std::function<nlohmann::json()>& last, std::function<void()> done) {
  forget_closed();
  if (browsers_.empty()) return done();
  const std::string change = change_to(last());
  for (const Browser& browser : browsers_) {
    const bool has_all = browser.has_all && browser.stream->queued_bytes() == 0;
    browser.stream->send(has_all ? change : whole());
    ending_.push_back(browser.stream);
  }
  end();
  finished_ = std::move(done);
  await_writes(Clock::now() + kLastLimit);
}

void LiveFeed::await_writes(TimePoint limit) {
  const bool is_written =
      std::ranges::all_of(ending_, [](const auto& stream) { return stream->queued_bytes() == 0; });
  if (!is_written && Clock::now() < limit)
    return ending_look_.after(kEndingLook, [this, limit] { await_writes(limit); });
  ending_.clear();
  if (const auto done = std::exchange(finished_, nullptr)) done();
}

}  // namespace ddp::server
