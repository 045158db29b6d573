#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/net/timer.h"
#include "launcher/etcd/etcd_messages.h"
#include "launcher/etcd/http_client.h"

namespace ddp::etcd {

struct EtcdOptions {
  std::vector<std::string> endpoints;  // "http://10.0.0.1:2379", client ports of the same cluster.
  config::TlsFiles tls;
};

// Client of an etcd cluster. A request goes to one endpoint. If that does not answer, or says that
// the cluster cannot serve the request now, the next endpoint is tried, in turn, until the
// request's time limit. So etcd may carry out a request twice; callers must make requests for which
// this does no harm.
//
// Everything, callbacks included, happens on the thread of `io`. Callbacks come from the event
// loop, never from inside a call. They may destroy this object, which drops pending requests.
// Errors name the endpoints:
//   kTimeout          nothing answered in time; the message has the last reason and a remedy
//   kNotFound         no such lease
//   kInvalidArgument  etcd refuses the request, or certificates do not fit; retrying does not help
//   kProtocol         the answer is not etcd's
class EtcdClient {
 public:
  // kNotFound if libcurl is not installed.
  static Result<std::unique_ptr<EtcdClient>> create(asio::io_context& io, EtcdOptions options);

  template <typename T>
  using Callback = std::function<void(Result<T>)>;

  void transact(const Transaction& transaction, Duration limit, Callback<TransactionAnswer> done);
  void grant_lease(Duration life, Duration limit, Callback<LeaseId> done);
  // Gives the seconds until the lease ends unless it is kept alive again; 0: it has ended.
  void keep_alive(LeaseId lease, Duration limit, Callback<std::int64_t> done);
  void revoke_lease(LeaseId lease, Duration limit, Callback<bool> done);

  // Reports each change of `key` from revision `start` on. There is one watch at a time; a new one
  // replaces the old one. `on_end` is called when the watch has ended. An endpoint that is cut off
  // from its cluster reports nothing either, so callers must also read the key now and then.
  void watch(const std::string& key, Revision start, std::function<void()> on_change,
             std::function<void(const Error&)> on_end);
  void end_watch();

  // This machine's address in the connection to the endpoint that answered last; empty before that.
  const std::string& local_address() const { return local_address_; }
  // All endpoints as a text, for messages.
  std::string endpoints() const;

 private:
  struct Call {
    std::string path;
    std::string body;
    TimePoint deadline;
    std::size_t attempts = 0;
    std::string last_error;
    std::function<void(Result<std::string>)> done;
    std::unique_ptr<net::Timer> pause;
  };

  EtcdClient(asio::io_context& io, EtcdOptions options, std::unique_ptr<HttpClient> http);
  void call(const std::string& path, std::string body, Duration limit,
            std::function<void(Result<std::string>)> done);
  void attempt(std::uint64_t id);
  void on_answer(std::uint64_t id, std::size_t endpoint, Result<HttpAnswer> answer);
  void try_again(std::uint64_t id, std::size_t endpoint, const std::string& why);
  void finish(std::uint64_t id, Result<std::string> result);
  void on_watch_bytes(std::string_view bytes);
  void watch_ended(const Error& why);

  asio::io_context& io_;
  const EtcdOptions options_;
  std::unique_ptr<HttpClient> http_;
  std::size_t current_ = 0;  // The endpoint that is tried first.
  std::string local_address_;
  std::map<std::uint64_t, Call> calls_;
  std::uint64_t next_id_ = 1;

  HttpClient::RequestId watch_ = 0;
  std::string watch_line_;
  std::function<void()> on_change_;
  std::function<void(const Error&)> on_watch_end_;
};

}  // namespace ddp::etcd
