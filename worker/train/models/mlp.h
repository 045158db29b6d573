#pragma once

#include <memory>

#include "worker/train/models/model.h"

namespace ddp::train {

// 784-512-512-10 with ReLU, for 1 x 28 x 28 images. Its 669,706 parameters are much to communicate
// for little computation. Its layers are fc1, fc2 and fc3.
std::shared_ptr<Model> make_mlp();

}  // namespace ddp::train
