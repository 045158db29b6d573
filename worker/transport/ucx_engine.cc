#include "worker/transport/ucx_engine.h"

#include <utility>

#include "worker/transport/ucx_stream.h"
#include "worker/transport/ucx_worker.h"

namespace ddp::transport {
namespace {

class UcxEngine : public DataEngine {
 public:
  explicit UcxEngine(std::shared_ptr<UcxWorker> worker) : worker_(std::move(worker)) {}
  EngineKind kind() const override { return EngineKind::kUcx; }
  std::unique_ptr<DataStream> open_stream(Connection connection) override {
    return std::make_unique<UcxStream>(worker_, std::move(connection));
  }

 private:
  std::shared_ptr<UcxWorker> worker_;
};

}  // namespace

Result<std::unique_ptr<DataEngine>> make_ucx_engine() {
  auto worker = UcxWorker::create();
  if (!worker) return worker.error();
  return std::unique_ptr<DataEngine>(new UcxEngine(std::move(*worker)));
}

}  // namespace ddp::transport
