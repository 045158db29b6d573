#pragma once

#include <string>
#include <string_view>

namespace ddp::terminal {

// Back to the first column, and nothing is on the line.
inline constexpr std::string_view kEraseLine = "\r\x1b[K";

// Whether this descriptor is a terminal that can show a status line, and this process has it to
// itself: not in the background, as one of several would be.
bool can_show_status(int fd);

// Of a line, what a row of this terminal has room for. The last column stays free: where the cursor
// goes from there differs between terminals.
std::string_view cut_to_width(int fd, std::string_view line);

// A name or sentence that other machines sent, with blanks for what would command the terminal.
std::string harmless(std::string text);

// Whether what is written to the one comes between what is written to the other: the same terminal
// or pipe. Two descriptors of a file are not.
bool same_stream(int a, int b);

}  // namespace ddp::terminal
