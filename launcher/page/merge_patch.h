#pragma once

#include <nlohmann/json_fwd.hpp>

namespace ddp::page {

// The JSON Merge Patch (RFC 7396) that makes `to` of `from`. A member that is gone is null in it,
// so documents themselves have no null members. Arrays that differ are there as a whole.
nlohmann::json merge_patch(const nlohmann::json& from, const nlohmann::json& to);

}  // namespace ddp::page
