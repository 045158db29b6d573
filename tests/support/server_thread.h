#pragma once

#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>

#include "launcher/server/server.h"

namespace ddp::test {

// Runs the daemon on its own thread, by default on a free port of 127.0.0.1.
class ServerThread {
 public:
  explicit ServerThread(server::ServerOptions options = {}) {
    if (options.bind_address.empty()) options.bind_address = "127.0.0.1";
    server_ = server::Server::listen(io_, options).value().release();
    port_ = server_->port();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~ServerThread() {
    call([this] { delete std::exchange(server_, nullptr); });
    io_.stop();
    thread_.join();
  }
  ServerThread(const ServerThread&) = delete;
  ServerThread& operator=(const ServerThread&) = delete;

  int port() const { return port_; }
  server::Server& server() { return *server_; }

  // Runs `work` on the server's thread and waits for it.
  void call(const std::function<void()>& work) {
    std::promise<void> done;
    asio::post(io_, [&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }

 private:
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_ = asio::make_work_guard(io_);
  server::Server* server_ = nullptr;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace ddp::test
