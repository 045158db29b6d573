#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <asio/io_context.hpp>
#include <nlohmann/json_fwd.hpp>

#include "common/auth/http_digest.h"
#include "common/base/host_port.h"
#include "common/base/ids.h"
#include "common/base/secret.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/server/http_session.h"
#include "launcher/server/live_feed.h"
#include "launcher/server/pages.h"
#include "launcher/server/refusals.h"

namespace ddp::server {

// What the daemon answers to HTTP requests (the table is in README.md). With a token, `/` and what
// it asks for need it. What workers have written is for this machine, for clients inside TLS, and
// for those with the token. On the thread of `io`.
class Site {
 public:
  struct Sources {
    std::function<DaemonFacts()> facts;
    // Of these jobs; of all if there are none.
    std::function<nlohmann::json(const std::set<std::string>& job_ids)> history;
    std::function<void(const std::string& job_id, Rank rank,
                       std::function<void(std::optional<wire::Output>)> done)>
        output;
    std::function<std::string(const std::string& job_id)> failure_text;
    // Writes the trace of the job to the stream.
    std::function<void(const std::string& job_id, std::shared_ptr<net::ByteStream> stream)> trace;
    std::function<bool()> trace_is_full;
    // Where the coordinator is, if this daemon stands by.
    std::function<std::optional<HostPort>()> elsewhere;
    std::function<void(RefusalReason why, const std::string& remote)> refused;
  };

  // `pages`: further pages of plain text, by their paths.
  Site(asio::io_context& io, const Secret& token, std::map<std::string, std::string> pages,
       Sources sources);

  void answer(const HttpRequest& request, const std::shared_ptr<HttpSession>& session);
  // Another daemon has what the pages show: their feeds end.
  void end_feeds() { feed_.end(); }
  // This daemon ends, and the feeds with what `last` gives; see LiveFeed::finish().
  void finish_feeds(const std::function<nlohmann::json()>& last, std::function<void()> done) {
    feed_.finish(last, std::move(done));
  }
  // What the page shows.
  nlohmann::json document() const;
  // `has_token`: then only those who know it get so far.
  static bool may_read_output(const HttpRequest& request, bool has_token) {
    return has_token || request.is_here || request.is_secure;
  }

 private:
  bool must_prove(const HttpRequest& request, const std::shared_ptr<HttpSession>& session) const;
  std::optional<HttpPage> page(const HttpRequest& request) const;
  void begin_feed(const std::shared_ptr<HttpSession>& session);
  void show_output(const HttpRequest& request, const std::shared_ptr<HttpSession>& session) const;
  void show_trace(const HttpRequest& request, const std::shared_ptr<HttpSession>& session) const;
  void show_failure(const HttpRequest& request, const std::shared_ptr<HttpSession>& session) const;

  std::map<std::string, std::string> pages_;
  Sources sources_;
  std::optional<auth::HttpDigest> digest_;  // Only with a token.
  LiveFeed feed_;
};

}  // namespace ddp::server
