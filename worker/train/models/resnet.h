#pragma once

#include <cstdint>
#include <memory>

#include "worker/train/models/two_stage.h"

namespace ddp::train {

// Residual networks for 3 x size x size images (He et al. 2015), like torchvision's: the same names
// of parameters and buffers, the stride of a bottleneck on its 3 x 3 convolution, the same initial
// weights from the same generator (Kaiming normal with fan-out; the weight of the last
// normalisation of a block is 1, not 0). The loss is the cross entropy. The cut is between layer2
// and layer3, with 45 % of the arithmetic before it and 55 % after it.
std::shared_ptr<TwoStageModel> make_resnet18(std::int64_t num_classes);
std::shared_ptr<TwoStageModel> make_resnet50(std::int64_t num_classes);

}  // namespace ddp::train
