#include "common/store/tcp_store.h"

#include <memory>
#include <utility>

#include "common/store/greeting.h"
#include "common/store/tcp_client.h"
#include "common/wait/deadline.h"

namespace ddp {

Result<std::unique_ptr<Store>> connect_tcp_store(const std::string& host, int port,
                                                 const TcpStoreOptions& options) {
  const TimePoint deadline = deadline_after(options.timeout);
  store::Backoff backoff;
  while (true) {
    Result<store::GreetedSocket> greeted =
        store::connect_and_greet(host, port, {}, options.dialect, deadline);
    if (greeted) {
      return std::unique_ptr<Store>(
          std::make_unique<store::TcpClient>(*std::move(greeted), host, port, options));
    }
    if (store::is_final(greeted.error())) return greeted.error();
    if (!backoff.pause(deadline)) {
      return make_error(Errc::kTimeout, "no TCP store within {} ms: {}", options.timeout.count(),
                        greeted.error().message);
    }
  }
}

Result<std::unique_ptr<Store>> connect_tcp_store(const std::string& host, int port,
                                                 Store::Timeout timeout) {
  TcpStoreOptions options;
  options.timeout = timeout;
  return connect_tcp_store(host, port, options);
}

}  // namespace ddp
