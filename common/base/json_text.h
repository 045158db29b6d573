#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

// JSON as bytes and back. The library's templates for that are large, so they are compiled once,
// here, and not wherever they are used.
namespace ddp {

// Throws nothing: bytes that are not UTF-8 are replaced, as workers' output, names of hosts and
// paths may have them. indent: spaces for each level; -1: all in one line.
std::string dump_json(const nlohmann::json& value, int indent = -1);
std::string dump_ordered_json(const nlohmann::ordered_json& value);

// Throws nlohmann::json::parse_error.
nlohmann::json parse_json(std::string_view text);
// is_discarded() holds for the result if the text is not JSON.
nlohmann::json parse_json_or_discard(std::string_view text);

// CBOR (RFC 8949), whose strings need not be UTF-8: arguments and names of files are bytes.
std::string encode_cbor(const nlohmann::json& value);
// Throws nlohmann::json::exception.
nlohmann::json decode_cbor(std::string_view bytes);

}  // namespace ddp
