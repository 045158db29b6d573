#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker/train/models/model.h"

namespace ddp::train {

// A small language model over bytes: the decoder of GPT-2 (Radford et al. 2019), with layer
// normalisation before each part of a layer, learned position embeddings, and output weights that
// are not tied to the input embedding. Input: bytes as int64 [n, length], length at most the
// context. Output: logits of the next byte, [n * length, 256], one row for each element of the
// target [n, length]. Loss: the mean cross entropy, in nats per byte.
std::shared_ptr<Model> make_gpt(const GptShape& shape);

// Returns `count` bytes that continue `prompt`, which must not be empty. Each byte is drawn from
// the model's probabilities, with random numbers that depend on the seed alone. Leaves the model's
// mode and LibTorch's generators unchanged.
std::string sample_text(Model& model, std::int64_t context, const std::string& prompt,
                        std::int64_t count, std::uint64_t seed);

}  // namespace ddp::train
