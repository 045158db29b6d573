#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker/train/models/model.h"

namespace ddp::train {

// A small language model over bytes: the decoder of GPT-2 (Radford et al. 2019), which normalises
// before each part of a layer, with learned positions and an output of its own. Input: int64
// [n, length], bytes, length at most the context; output: the scores of the next byte, [n * length,
// 256], as many as the target of [n, length] has elements. Loss: the mean cross entropy, in nats a
// byte.
std::shared_ptr<Model> make_gpt(const GptShape& shape);

// `count` bytes after `prompt` (not empty), each drawn by the model's own probabilities with
// numbers that depend on the seed alone. The model's mode and LibTorch's generators stay as they
// are.
std::string sample_text(Model& model, std::int64_t context, const std::string& prompt,
                        std::int64_t count, std::uint64_t seed);

}  // namespace ddp::train
