#include "common/net/join_streams.h"

#include <cstddef>
#include <string_view>
#include <utility>

namespace ddp::net {
namespace {

// While this many bytes wait to be sent, no more are read.
constexpr std::size_t kPauseBytes = 256u << 10;

// The handler of one stream.
class Joint : public Stream::Handler {
 public:
  Joint(Stream& own, std::shared_ptr<Stream> other) : own_(own), other_(std::move(other)) {}

  void on_bytes(std::string_view bytes) override {
    other_->send(bytes);
    if (other_->queued_bytes() > kPauseBytes) own_.pause_reading();
  }
  void on_drained() override { other_->resume_reading(); }
  void on_closed(const Error&) override { other_->close_after_writes(); }

 private:
  Stream& own_;  // Holds this handler.
  std::shared_ptr<Stream> other_;
};

}  // namespace

void join_streams(const std::shared_ptr<Stream>& one, const std::shared_ptr<Stream>& other) {
  one->set_handler(std::make_shared<Joint>(*one, other));
  other->set_handler(std::make_shared<Joint>(*other, one));
}

}  // namespace ddp::net
