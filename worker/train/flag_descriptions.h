#pragma once

#include <string>

#include <boost/program_options/options_description.hpp>

namespace ddp::train {

// All flags of ddp-train, in groups.
boost::program_options::options_description describe_flags();

// --help.
std::string help_text();

}  // namespace ddp::train
