#include "launcher/server/site.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/base/parse_number.h"
#include "common/base/random_hex.h"
#include "launcher/page/page.h"
#include "launcher/page/page_document.h"

namespace ddp::server {
namespace {

constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kShownJobs =
    32;  // By the page; those that are not over come first, and then the newest-ended.

std::int64_t now_in_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count();
}

HttpPage json_page(const nlohmann::json& value) {
  return {"application/json", dump_json(value) + "\n"};
}

HttpPage html_page() {
  return {"text/html; charset=utf-8", std::string(page::live_page()),
          std::string(page::page_headers())};
}

}  // namespace

Site::Site(asio::io_context& io, const Secret& token, std::map<std::string, std::string> pages,
           Sources sources)
    : pages_(std::move(pages)),
      sources_(std::move(sources)),
      feed_(io, [this] { return document(); }) {
  if (!token.empty()) digest_.emplace(token, random_hex(kKeyBytes));
}

void Site::answer(const HttpRequest& request, const std::shared_ptr<HttpSession>& session) {
  const std::string& path = request.path;
  // What a daemon tells of itself, and not of jobs, it tells also while it stands by.
  if (path != "/metrics" && !pages_.contains(path)) {
    if (const auto place = sources_.elsewhere()) {
      HttpPage page = text_page("the coordinator is elsewhere\n");
      // A browser takes events only from where its page came from.
      if (path == "/live") return session->reply("503 Service Unavailable", page);
      page.headers = fmt::format("Location: http://{}{}\r\n",
                                 host_and_port(place->host, place->port), request.target);
      return session->reply("307 Temporary Redirect", page);
    }
  }
  const bool is_guarded =
      path == "/" || path == "/live" || path == "/output" || path == "/failure" || path == "/trace";
  if (is_guarded && must_prove(request, session)) return;
  if (path == "/live") return begin_feed(session);
  if (path == "/output") return show_output(request, session);
  if (path == "/failure") return show_failure(request, session);
  if (path == "/trace") return show_trace(request, session);
  if (const auto found = page(request)) return session->reply("200 OK", *found);
  session->reply("404 Not Found", text_page("the pages are /, /status, /history and /metrics\n"));
}

// Whether the client must prove first that it knows the token; it is told so.
bool Site::must_prove(const HttpRequest& request,
                      const std::shared_ptr<HttpSession>& session) const {
  using Verdict = auth::HttpDigest::Verdict;
  if (!digest_) return false;
  const std::int64_t now = now_in_seconds();
  const Verdict verdict =
      digest_->judge(request.method, request.target, request.authorization, now);
  if (verdict == Verdict::kAdmitted) return false;
  if (verdict == Verdict::kWrong) sources_.refused(RefusalReason::kWrongToken, session->remote());
  HttpPage page = text_page("this job has a token; give it as the password, with any user name\n");
  page.headers =
      fmt::format("WWW-Authenticate: {}\r\n", digest_->challenge(now, verdict == Verdict::kStale));
  session->reply("401 Unauthorized", page);
  return true;
}

std::optional<HttpPage> Site::page(const HttpRequest& request) const {
  if (request.path == "/") return html_page();
  if (request.path == "/status") return HttpPage{"application/json", status_page(sources_.facts())};
  if (request.path == "/history")
    return HttpPage{"application/json", history_page(sources_.history({}))};
  if (request.path == "/metrics")
    return HttpPage{"text/plain; version=0.0.4", metrics_page(sources_.facts())};
  const auto more = pages_.find(request.path);
  if (more == pages_.end()) return std::nullopt;
  return text_page(more->second);
}

// A daemon that serves many jobs remembers a thousand that are over.
nlohmann::json Site::document() const {
  std::vector<rendezvous::JobStatus> jobs = sources_.facts().jobs;
  std::ranges::stable_sort(jobs, {}, [](const rendezvous::JobStatus& job) {
    return std::pair(job.exit_code.has_value(), job.since_end);
  });
  if (jobs.size() > kShownJobs) jobs.resize(kShownJobs);
  nlohmann::json status = nlohmann::json::array();
  std::set<std::string> job_ids;
  for (const rendezvous::JobStatus& job : jobs) {
    status.push_back(rendezvous::to_json(job));
    job_ids.insert(job.job_id);
  }
  if (job_ids.empty()) return page::page_document(status, nlohmann::json::array());
  return page::page_document(status, sources_.history(job_ids));
}

void Site::begin_feed(const std::shared_ptr<HttpSession>& session) {
  if (feed_.is_full()) {
    return session->reply(
        "503 Service Unavailable",
        text_page(fmt::format("{} browsers look at this page already\n", LiveFeed::kMaxBrowsers)));
  }
  if (auto stream = session->begin_stream("text/event-stream")) feed_.add(std::move(stream));
}

void Site::show_output(const HttpRequest& request,
                       const std::shared_ptr<HttpSession>& session) const {
  if (!may_read_output(request, digest_.has_value())) {
    return session->reply(
        "403 Forbidden",
        text_page(
            "Output is shown on this machine only, because the job has no token. Look through "
            "`ssh -L`, or give the job a token (--rdzv-token-file).\n"));
  }
  const auto job_id = request.value_of("job");
  const auto rank = parse_whole_number<Rank>(request.value_of("rank").value_or(""), 0);
  if (!job_id || !rank)
    return session->reply("400 Bad Request", text_page("usage: /output?job=ID&rank=NUMBER\n"));
  sources_.output(*job_id, *rank,
                  [weak = std::weak_ptr(session)](const std::optional<wire::Output>& output) {
                    const auto asked = weak.lock();
                    if (!asked) return;
                    if (!output)
                      return asked->reply("404 Not Found", text_page("no such rank runs now\n"));
                    asked->reply("200 OK", json_page({{"out", output->out}, {"err", output->err}}));
                  });
}

// Of the job that is named, or of the only one that runs.
void Site::show_trace(const HttpRequest& request,
                      const std::shared_ptr<HttpSession>& session) const {
  const auto named = request.value_of("job");
  std::vector<std::string> running;
  for (const rendezvous::JobStatus& job : sources_.facts().jobs) {
    if (!job.exit_code && (!named || job.job_id == *named)) running.push_back(job.job_id);
  }
  if (running.empty()) return session->reply("404 Not Found", text_page("no such job runs now\n"));
  if (running.size() > 1) {
    return session->reply("400 Bad Request",
                          text_page(fmt::format("{} jobs run here; name one: {}\n", running.size(),
                                                fmt::join(running, ", "))));
  }
  if (sources_.trace_is_full()) {
    return session->reply("503 Service Unavailable",
                          text_page("too many traces are taken already; try again later\n"));
  }
  if (auto stream = session->begin_stream("application/json"))
    sources_.trace(running.front(), std::move(stream));
}

void Site::show_failure(const HttpRequest& request,
                        const std::shared_ptr<HttpSession>& session) const {
  const std::string text = sources_.failure_text(request.value_of("job").value_or(""));
  if (text.empty()) return session->reply("404 Not Found", text_page("no failure is known\n"));
  if (!may_read_output(request, digest_.has_value())) {
    return session->reply("403 Forbidden",
                          text_page("The whole report is shown on this machine only, because it "
                                    "has output, and the job has no token.\n"));
  }
  session->reply("200 OK", text_page(text));
}

}  // namespace ddp::server
