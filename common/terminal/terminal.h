#pragma once

#include <string>
#include <string_view>

namespace ddp::terminal {

// Moves to the first column and clears the line.
inline constexpr std::string_view kEraseLine = "\r\x1b[K";

// Whether this descriptor is a terminal that can show a status line, and this process is in its
// foreground.
bool can_show_status(int fd);

// Cuts a line to the width of this terminal. The last column stays free, because terminals differ
// in where the cursor goes from there.
std::string_view cut_to_width(int fd, std::string_view line);

// How many lines this terminal shows; 24 if it does not say.
int rows(int fd);

// Replaces control characters by blanks, so that text from other machines cannot command the
// terminal.
std::string harmless(std::string text);

// Whether both are the same terminal or pipe, so that output to one mixes with output to the other.
// False for two descriptors of one file.
bool same_stream(int a, int b);

}  // namespace ddp::terminal
