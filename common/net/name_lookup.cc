#include "common/net/name_lookup.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>

#include "common/base/errc.h"
#include "common/base/unique_fd.h"
#include "common/process/all_signals_blocked.h"
#include "common/process/parked_threads.h"

namespace ddp::net {

// What the thread uses. It may outlive everything else.
struct NameLookup::Question {
  std::string host;
  std::string port;
  Result<Endpoints> answer = Endpoints();
  UniqueFd answered{::eventfd(0, EFD_CLOEXEC)};
  std::atomic<bool> is_answered = false;

  void find();
  void run();
};

void NameLookup::Question::find() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0) {
    const std::string why =
        code == EAI_SYSTEM ? std::generic_category().message(errno) : ::gai_strerror(code);
    answer = make_error(Errc::kNotFound, "host name '{}' does not resolve: {}", host, why);
    return;
  }
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    asio::ip::tcp::endpoint endpoint;
    if (each->ai_addrlen > endpoint.capacity()) continue;
    std::memcpy(endpoint.data(), each->ai_addr, each->ai_addrlen);
    endpoint.resize(each->ai_addrlen);
    answer->push_back(endpoint);
  }
  ::freeaddrinfo(found);
}

void NameLookup::Question::run() {
  find();
  is_answered = true;
  ::eventfd_write(answered.get(), 1);
}

struct NameLookup::State {
  State(asio::io_context& io, std::shared_ptr<Question> about, UniqueFd answered)
      : question(std::move(about)), wait(io, answered.release()) {
    const AllSignalsBlocked blocked;  // The main thread gets them.
    thread = std::thread([asked = question] { asked->run(); });
  }
  ~State() {
    if (question->is_answered) {
      thread.join();
    } else {
      park_thread(std::move(thread));
    }
  }

  std::shared_ptr<Question> question;
  asio::posix::stream_descriptor wait;
  std::thread thread;
};

void NameLookup::ask(const std::string& host, int port, Callback callback) {
  auto question = std::make_shared<Question>();
  question->host = host;
  question->port = std::to_string(port);
  // The loop has a number of its own for the descriptor, since each side closes one.
  UniqueFd answered(::fcntl(question->answered.get(), F_DUPFD_CLOEXEC, 0));
  if (!answered) {
    Error failed = make_error(Errc::kNotFound, "host name '{}' cannot be looked up: {}", host,
                              std::generic_category().message(errno));
    return asio::post(
        io_, [failed = std::move(failed), callback = std::move(callback)] { callback(failed); });
  }
  state_ = std::make_shared<State>(io_, std::move(question), std::move(answered));
  state_->wait.async_wait(
      asio::posix::stream_descriptor::wait_read,
      [state = state_, callback = std::move(callback)](const std::error_code& error) {
        if (!error && state->wait.is_open()) callback(std::move(state->question->answer));
      });
}

void NameLookup::cancel() {
  if (!state_) return;
  std::error_code ignored;
  state_->wait.close(ignored);
  state_.reset();
}

}  // namespace ddp::net
