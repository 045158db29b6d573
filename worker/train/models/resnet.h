#pragma once

#include <cstdint>
#include <memory>

#include "worker/train/models/two_stage.h"

namespace ddp::train {

// Residual networks for 3 x size x size images (He et al. 2015) as torchvision has them: the same
// names of parameters and buffers, the stride of a bottleneck on its 3 x 3 convolution, the same
// first weights from the same generator (Kaiming's normal distribution by fan-out; the last
// normalisation of a block begins as 1, not 0). The loss is the cross entropy. The cut is between
// layer2 and layer3, which halves the arithmetic: 45 % before it, 55 % behind it.
std::shared_ptr<TwoStageModel> make_resnet18(std::int64_t num_classes);
std::shared_ptr<TwoStageModel> make_resnet50(std::int64_t num_classes);

}  // namespace ddp::train
