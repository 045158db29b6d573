#include "launcher/etcd/etcd_client.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

namespace ddp::etcd {
namespace {

// How long one endpoint may take before the next one is tried.
constexpr Duration kAttemptLimit{1'500};
// The pause after all endpoints were tried without success.
constexpr Duration kPause{100};
// A longer line cannot be an answer to our watch.
constexpr std::size_t kLineMax = 4u << 20;

// The gRPC error codes for which repeating the request does not help.
bool is_final(int code) {
  constexpr int kInvalidArgument = 3;
  constexpr int kNotFound = 5;
  constexpr int kPermissionDenied = 7;
  constexpr int kFailedPrecondition = 9;
  constexpr int kOutOfRange = 11;
  constexpr int kUnimplemented = 12;
  constexpr int kUnauthenticated = 16;
  for (const int final : {kInvalidArgument, kNotFound, kPermissionDenied, kFailedPrecondition,
                          kOutOfRange, kUnimplemented, kUnauthenticated}) {
    if (code == final) return true;
  }
  return false;
}

constexpr int kGrpcNotFound = 5;

// Gives `done` what `parse` makes of an answer.
template <typename Done, typename Parse>
std::function<void(Result<std::string>)> parsed(Done done, Parse parse) {
  return [done = std::move(done), parse = std::move(parse)](const Result<std::string>& body) {
    if (!body) return done(body.error());
    done(parse(*body));
  };
}

}  // namespace

Result<std::unique_ptr<EtcdClient>> EtcdClient::create(asio::io_context& io, EtcdOptions options) {
  DDP_CHECK(!options.endpoints.empty(), "no endpoint");
  auto http = HttpClient::create(io, options.tls);
  if (!http) return http.error();
  return std::unique_ptr<EtcdClient>(new EtcdClient(io, std::move(options), std::move(*http)));
}

EtcdClient::EtcdClient(asio::io_context& io, EtcdOptions options, std::unique_ptr<HttpClient> http)
    : io_(io), options_(std::move(options)), http_(std::move(http)) {}

std::string EtcdClient::endpoints() const {
  return fmt::format("{}", fmt::join(options_.endpoints, ", "));
}

void EtcdClient::call(const std::string& path, std::string body, Duration limit,
                      std::function<void(Result<std::string>)> done) {
  const std::uint64_t id = next_id_++;
  Call& call = calls_[id];
  call.path = path;
  call.body = std::move(body);
  call.deadline = Clock::now() + limit;
  call.done = std::move(done);
  call.pause = std::make_unique<net::Timer>(io_);
  attempt(id);
}

void EtcdClient::attempt(std::uint64_t id) {
  Call& call = calls_.at(id);
  ++call.attempts;
  const auto left = std::chrono::duration_cast<Duration>(call.deadline - Clock::now());
  const std::size_t endpoint = current_;
  http_->post({.url = options_.endpoints[endpoint] + call.path,
               .body = call.body,
               .limit = std::clamp(left, Duration(1), kAttemptLimit)},
              nullptr, [this, id, endpoint](Result<HttpAnswer> answer) {
                on_answer(id, endpoint, std::move(answer));
              });
}

void EtcdClient::on_answer(std::uint64_t id, std::size_t endpoint, Result<HttpAnswer> answer) {
  if (!answer) {
    if (answer.error().code != Errc::kInvalidArgument) {
      return try_again(id, endpoint, answer.error().message);
    }
    return finish(id, make_error(Errc::kInvalidArgument,
                                 "etcd at {}: {}; see --rdzv-conf protocol, cacert, cert and key",
                                 options_.endpoints[endpoint], answer.error().message));
  }
  local_address_ = answer->local_address;
  if (answer->status == 200) return finish(id, std::move(answer->body));
  const ErrorAnswer error = parse_error(answer->body);
  if (answer->status != 404 && !is_final(error.code)) {
    return try_again(id, endpoint, fmt::format("HTTP {}: {}", answer->status, error.message));
  }
  finish(id, make_error(error.code == kGrpcNotFound ? Errc::kNotFound : Errc::kInvalidArgument,
                        "etcd at {} refuses {} with HTTP {}: {}", options_.endpoints[endpoint],
                        calls_.at(id).path, answer->status, error.message));
}

void EtcdClient::try_again(std::uint64_t id, std::size_t endpoint, const std::string& why) {
  Call& call = calls_.at(id);
  call.last_error = fmt::format("{}: {}", options_.endpoints[endpoint], why);
  // Unless another request has already moved on.
  if (current_ == endpoint) current_ = (current_ + 1) % options_.endpoints.size();
  const bool all_asked = call.attempts % options_.endpoints.size() == 0;
  const Duration pause = all_asked ? kPause : Duration(0);
  if (Clock::now() + pause < call.deadline) {
    return call.pause->after(pause, [this, id] { attempt(id); });
  }
  finish(id, make_error(Errc::kTimeout,
                        "etcd does not answer at {} ({}); check that it runs and that "
                        "--rdzv-endpoint names its client ports",
                        endpoints(), call.last_error));
}

void EtcdClient::finish(std::uint64_t id, Result<std::string> result) {
  const auto found = calls_.find(id);
  const auto done = std::move(found->second.done);
  calls_.erase(found);
  done(std::move(result));
}

void EtcdClient::transact(const Transaction& transaction, Duration limit,
                          Callback<TransactionAnswer> done) {
  call("/v3/kv/txn", to_json(transaction), limit,
       parsed(std::move(done),
              [transaction](const std::string& body) { return parse_answer(transaction, body); }));
}

void EtcdClient::grant_lease(Duration life, Duration limit, Callback<LeaseId> done) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(life).count();
  call("/v3/lease/grant", lease_grant_json(seconds), limit,
       parsed(std::move(done), parse_lease_grant));
}

void EtcdClient::keep_alive(LeaseId lease, Duration limit, Callback<std::int64_t> done) {
  call("/v3/lease/keepalive", lease_json(lease), limit, parsed(std::move(done), parse_keep_alive));
}

void EtcdClient::revoke_lease(LeaseId lease, Duration limit, Callback<bool> done) {
  call("/v3/lease/revoke", lease_json(lease), limit,
       parsed(std::move(done), [](const std::string& /*body*/) { return true; }));
}

// ---- the watch ----

void EtcdClient::watch(const std::string& key, Revision start, std::function<void()> on_change,
                       std::function<void(const Error&)> on_end) {
  end_watch();
  on_change_ = std::move(on_change);
  on_watch_end_ = std::move(on_end);
  watch_line_.clear();
  watch_ = http_->post(
      {.url = options_.endpoints[current_] + "/v3/watch",
       .body = watch_json(key, start),
       .limit = Duration(0)},
      [this](std::string_view bytes) { on_watch_bytes(bytes); },
      [this](Result<HttpAnswer> answer) {
        watch_ended(answer ? make_error(Errc::kPeerLost, "etcd ended the watch") : answer.error());
      });
}

void EtcdClient::end_watch() {
  if (watch_ != 0) http_->cancel(std::exchange(watch_, 0));
  on_change_ = nullptr;
  on_watch_end_ = nullptr;
}

void EtcdClient::watch_ended(const Error& why) {
  const auto on_end = on_watch_end_;
  end_watch();
  if (on_end) on_end(why);
}

void EtcdClient::on_watch_bytes(std::string_view bytes) {
  watch_line_.append(bytes);
  bool changed = false;
  for (;;) {
    const auto end = watch_line_.find('\n');
    if (end == std::string::npos) break;
    const auto answer = parse_watch(std::string_view(watch_line_).substr(0, end));
    watch_line_.erase(0, end + 1);
    if (!answer) return watch_ended(answer.error());
    if (answer->ended) return watch_ended(make_error(Errc::kPeerLost, "{}", answer->reason));
    changed = changed || answer->changed;
  }
  if (watch_line_.size() > kLineMax) {
    return watch_ended(make_error(Errc::kProtocol, "a line of the watch does not end"));
  }
  const auto on_change = on_change_;  // A copy, because the callback may end the watch.
  if (changed && on_change) on_change();
}

}  // namespace ddp::etcd
