#include "worker/train/models/model.h"

#include <string_view>

#include "common/base/check.h"
#include "worker/train/models/gpt.h"
#include "worker/train/models/mlp.h"
#include "worker/train/models/mnist.h"
#include "worker/train/models/resnet.h"
#include "worker/train/models/toy.h"

namespace ddp::train {
namespace {

constexpr std::string_view kModelParallel = "-model-parallel";

std::shared_ptr<TwoStageModel> make_two_stage(std::string_view name, std::int64_t num_classes) {
  if (name == "toy") return make_toy();
  if (name == "resnet18") return make_resnet18(num_classes);
  DDP_CHECK(name == "resnet50", "model {}", name);
  return make_resnet50(num_classes);
}

}  // namespace

std::shared_ptr<Model> make_model(const ModelSpec& spec) {
  std::shared_ptr<Model> model;
  std::string_view name = spec.name;
  if (name.ends_with(kModelParallel)) {
    name.remove_suffix(kModelParallel.size());
    DDP_CHECK(spec.devices.size() == 2, "{} on {} devices", spec.name, spec.devices.size());
    auto two_stage = make_two_stage(name, spec.num_classes);
    two_stage->split(spec.devices[0], spec.devices[1], spec.micro_batches);
    return two_stage;
  }
  DDP_CHECK(spec.devices.size() == 1, "{} on {} devices", spec.name, spec.devices.size());
  if (name == "mnist") {
    model = make_mnist(spec.dropout);
  } else if (name == "mlp") {
    model = make_mlp();
  } else if (name == "gpt") {
    model = make_gpt(spec.gpt);
  } else {
    model = make_two_stage(name, spec.num_classes);
  }
  model->to(spec.devices[0]);
  return model;
}

}  // namespace ddp::train
