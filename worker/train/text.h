#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/result.h"

// Text for the language model, without LibTorch.
namespace ddp::train {

// The bytes of a file, or of all regular files in and below a folder, in the order of their paths.
// Each file after the first begins on a new line. kNotFound or kIo with the path; kCorrupt if there
// are fewer than 2 bytes.
Result<std::string> read_text_data(const std::string& path);

// `bytes` bytes of generated English: sentences of a small grammar, in which verbs agree with their
// subjects and pronouns with their nouns, so there is more to learn than the frequency of letters.
// Depends on the arguments alone; another stream gives another text.
std::string draw_text(std::size_t bytes, std::uint64_t seed, std::uint64_t stream);

}  // namespace ddp::train
