#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/result.h"

// Text for the language model, without LibTorch.
namespace ddp::train {

// The bytes of a file, or of all regular files of a folder and those below it, in the order of
// their paths, with a line's end between two. kNotFound, kIo with the path; kCorrupt if it is no
// more than a byte.
Result<std::string> read_text_data(const std::string& path);

// `bytes` bytes of made-up English: sentences of a small grammar, in which verbs agree with their
// subjects and pronouns with whom they mean, so there is more to learn than which letter is
// frequent. Depends on the arguments alone; another stream is another text.
std::string draw_text(std::size_t bytes, std::uint64_t seed, std::uint64_t stream);

}  // namespace ddp::train
