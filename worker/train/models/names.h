#pragma once

#include <string_view>

// Properties of a model that follow from its name, without LibTorch.
namespace ddp::train {

inline bool is_model_parallel(std::string_view model) { return model.ends_with("-model-parallel"); }
inline bool is_toy(std::string_view model) { return model.starts_with("toy"); }
// Takes 1 x 28 x 28 images of digits.
inline bool is_for_digits(std::string_view model) { return model == "mnist" || model == "mlp"; }
// Takes bytes of text.
inline bool is_for_text(std::string_view model) { return model == "gpt"; }
// Takes 3 x size x size images and has any number of classes.
inline bool is_resnet(std::string_view model) { return model.starts_with("resnet"); }

// The default of --lr, before it is multiplied by the number of workers.
inline double default_lr(std::string_view model) { return model == "gpt" ? 5e-4 : 0.01; }

}  // namespace ddp::train
