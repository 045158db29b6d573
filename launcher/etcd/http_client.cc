#include "launcher/etcd/http_client.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/net/poller.h"
#include "launcher/etcd/curl_library.h"

namespace ddp::etcd {
namespace {

constexpr long kConnectLimitMs = 2'000;
// TCP keepalive detects a vanished peer after this many seconds of silence.
constexpr long kKeepAliveSeconds = 3;

Error error_of(const CurlLibrary& curl, CURLcode code, const char* details) {
  const std::string text = *details != '\0' ? details : curl.describe(code);
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return make_error(Errc::kTimeout, "{}", text);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_URL_MALFORMAT:
      return make_error(Errc::kInvalidArgument, "{}", text);
    default:
      return make_error(Errc::kPeerLost, "{}", text);
  }
}

// Workers must not inherit the socket.
int close_on_exec(void* /*client*/, curl_socket_t fd, curlsocktype /*purpose*/) {
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return CURL_SOCKOPT_OK;
}

}  // namespace

struct HttpClient::Curl {
  const CurlLibrary* library = nullptr;
  CURLM* multi = nullptr;

  static int on_socket(CURL* /*easy*/, curl_socket_t fd, int what, void* client, void* /*own*/) {
    static_cast<HttpClient*>(client)->watch_socket(
        fd, what == CURL_POLL_IN || what == CURL_POLL_INOUT,
        what == CURL_POLL_OUT || what == CURL_POLL_INOUT);
    return 0;
  }
  static int on_timer(CURLM* /*multi*/, long ms, void* client) {
    static_cast<HttpClient*>(client)->set_timer(ms);
    return 0;
  }
};

struct HttpClient::Transfer {
  const CurlLibrary* library = nullptr;
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  std::array<char, CURL_ERROR_SIZE> details{};
  std::string body;
  std::string received;
  BytesCallback on_bytes;
  EndCallback on_end;

  ~Transfer() {
    if (easy != nullptr) library->easy_cleanup(easy);
    if (headers != nullptr) library->list_free(headers);
  }
  static std::size_t on_data(char* bytes, std::size_t one, std::size_t count, void* transfer) {
    static_cast<Transfer*>(transfer)->received.append(bytes, one * count);
    return one * count;
  }
};

class HttpClient::SocketWatcher : public net::Poller::Watcher {
 public:
  SocketWatcher(HttpClient& client, int fd) : client_(client), fd_(fd) {}
  void on_ready(bool readable, bool writable) override {
    client_.act(fd_, (readable ? CURL_CSELECT_IN : 0) | (writable ? CURL_CSELECT_OUT : 0));
  }

 private:
  HttpClient& client_;
  const int fd_;
};

Result<std::unique_ptr<HttpClient>> HttpClient::create(asio::io_context& io,
                                                       const config::TlsFiles& tls) {
  const auto library = CurlLibrary::load();
  if (!library) return library.error();
  auto curl = std::make_unique<Curl>();
  curl->library = *library;
  curl->multi = (*library)->multi_init();
  DDP_CHECK(curl->multi != nullptr, "curl_multi_init failed");
  return std::unique_ptr<HttpClient>(new HttpClient(io, tls, std::move(curl)));
}

HttpClient::HttpClient(asio::io_context& io, config::TlsFiles tls, std::unique_ptr<Curl> curl)
    : io_(io), tls_(std::move(tls)), curl_(std::move(curl)), timer_(io) {
  const CurlLibrary& library = *curl_->library;
  library.multi_set_option(curl_->multi, CURLMOPT_SOCKETFUNCTION, &Curl::on_socket);
  library.multi_set_option(curl_->multi, CURLMOPT_SOCKETDATA, this);
  library.multi_set_option(curl_->multi, CURLMOPT_TIMERFUNCTION, &Curl::on_timer);
  library.multi_set_option(curl_->multi, CURLMOPT_TIMERDATA, this);
}

HttpClient::~HttpClient() {
  for (const auto& [id, transfer] : transfers_) {
    curl_->library->multi_remove(curl_->multi, transfer->easy);
  }
  transfers_.clear();
  curl_->library->multi_cleanup(curl_->multi);
}

void HttpClient::watch_socket(int fd, bool read, bool write) {
  net::Poller::of(io_).watch(fd, std::make_shared<SocketWatcher>(*this, fd), {read, write});
}

void HttpClient::set_timer(long ms) {
  if (ms < 0) return timer_.cancel();
  timer_.after(Duration(ms), [this] { act(CURL_SOCKET_TIMEOUT, 0); });
}

HttpClient::RequestId HttpClient::post(const HttpRequest& request, BytesCallback on_bytes,
                                       EndCallback on_end) {
  const CurlLibrary& curl = *curl_->library;
  auto transfer = std::make_unique<Transfer>();
  transfer->library = &curl;
  transfer->easy = curl.easy_init();
  transfer->headers = curl.list_append(nullptr, "Content-Type: application/json");
  // Without this, libcurl asks before it sends a large body, and waits a second for the answer.
  transfer->headers = curl.list_append(transfer->headers, "Expect:");
  transfer->body = request.body;
  transfer->on_bytes = std::move(on_bytes);
  transfer->on_end = std::move(on_end);
  const auto set = [&](CURLoption option, auto value) {
    curl.set_option(transfer->easy, option, value);
  };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_POST, 1L);
  set(CURLOPT_POSTFIELDSIZE, static_cast<long>(transfer->body.size()));
  set(CURLOPT_POSTFIELDS, transfer->body.c_str());
  set(CURLOPT_HTTPHEADER, transfer->headers);
  set(CURLOPT_WRITEFUNCTION, &Transfer::on_data);
  set(CURLOPT_WRITEDATA, transfer.get());
  set(CURLOPT_ERRORBUFFER, transfer->details.data());
  set(CURLOPT_SOCKOPTFUNCTION, &close_on_exec);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_NOPROXY, "*");  // An etcd cluster is near; http_proxy is for the web.
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_TCP_KEEPIDLE, kKeepAliveSeconds);
  set(CURLOPT_TCP_KEEPINTVL, kKeepAliveSeconds);
  set(CURLOPT_CONNECTTIMEOUT_MS, kConnectLimitMs);
  if (request.limit.count() > 0) set(CURLOPT_TIMEOUT_MS, static_cast<long>(request.limit.count()));
  if (!tls_.ca.empty()) set(CURLOPT_CAINFO, tls_.ca.c_str());
  if (!tls_.certificate.empty()) set(CURLOPT_SSLCERT, tls_.certificate.c_str());
  if (!tls_.key.empty()) set(CURLOPT_SSLKEY, tls_.key.c_str());
  const RequestId id = next_id_++;
  CURL* easy = transfer->easy;
  transfers_.emplace(id, std::move(transfer));
  curl.multi_add(curl_->multi, easy);
  return id;
}

void HttpClient::cancel(RequestId id) {
  const auto found = transfers_.find(id);
  if (found == transfers_.end()) return;
  curl_->library->multi_remove(curl_->multi, found->second->easy);
  transfers_.erase(found);
}

void HttpClient::act(int fd, int events) {
  int running = 0;
  curl_->library->multi_socket_action(curl_->multi, fd, events, &running);
  deliver();
}

// libcurl must not be called from inside its own callbacks, so our callbacks wait until it has
// returned.
void HttpClient::deliver() {
  const CurlLibrary& curl = *curl_->library;
  std::vector<std::function<void()>> calls;
  for (const auto& [id, transfer] : transfers_) {
    if (!transfer->on_bytes || transfer->received.empty()) continue;
    calls.push_back([this, number = id, bytes = std::exchange(transfer->received, {})] {
      const auto found = transfers_.find(number);  // An earlier call may have cancelled it.
      if (found == transfers_.end()) return;
      const BytesCallback on_bytes = found->second->on_bytes;
      on_bytes(bytes);
    });
  }
  int left = 0;
  while (CURLMsg* message = curl.multi_info_read(curl_->multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const auto done = std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& entry) {
      return entry.second->easy == message->easy_handle;
    });
    if (done == transfers_.end()) continue;
    calls.push_back([this, id = done->first, code = message->data.result] { end(id, code); });
  }
  for (const auto& call : calls) {
    const std::weak_ptr<bool> alive = alive_;
    call();
    if (alive.expired()) return;
  }
}

void HttpClient::end(RequestId id, int code) {
  const auto found = transfers_.find(id);  // An earlier callback may have cancelled it.
  if (found == transfers_.end()) return;
  const std::unique_ptr<Transfer> transfer = std::move(found->second);
  transfers_.erase(found);
  const CurlLibrary& curl = *curl_->library;
  curl.multi_remove(curl_->multi, transfer->easy);
  if (code != CURLE_OK) {
    return transfer->on_end(error_of(curl, static_cast<CURLcode>(code), transfer->details.data()));
  }
  HttpAnswer answer;
  curl.get_info(transfer->easy, CURLINFO_RESPONSE_CODE, &answer.status);
  const char* address = nullptr;
  curl.get_info(transfer->easy, CURLINFO_LOCAL_IP, &address);
  if (address != nullptr) answer.local_address = address;
  answer.body = std::move(transfer->received);
  transfer->on_end(std::move(answer));
}

}  // namespace ddp::etcd
