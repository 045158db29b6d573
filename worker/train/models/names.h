#pragma once

#include <string_view>

// What a model's name tells, without LibTorch.
namespace ddp::train {

inline bool is_model_parallel(std::string_view model) { return model.ends_with("-model-parallel"); }
inline bool is_toy(std::string_view model) { return model.starts_with("toy"); }
// Takes 3 x size x size images and has any number of classes.
inline bool is_resnet(std::string_view model) { return model.starts_with("resnet"); }

}  // namespace ddp::train
