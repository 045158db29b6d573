#pragma once

#include <memory>

#include "worker/train/models/model.h"

namespace ddp::train {

// The network of torch_xla's benchmark, for 1 x 28 x 28 images and ten classes.
std::shared_ptr<Model> make_mnist(double dropout = 0);

}  // namespace ddp::train
