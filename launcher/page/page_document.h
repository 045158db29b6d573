#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace ddp::page {

// What the page shows: {"jobs": {JOB_ID: {...}}}. A job has the members that it has in /status and
// in /history. What is a list there is an object here, so that a merge patch has only what changes:
//   nodes        by node_id; "place" is a node's index in the list
//   late         by rank
//   rounds       by number
//   checkpoints  by "ROUND/STEP"
//   curves       points by index: [mean, least, most]; "gap" is how many intervals usually lie from
//                one point to the next
// `status`, `history`: the lists "jobs" of these pages. A job that is not in `history` has none of
// the last three.
nlohmann::json page_document(const nlohmann::json& status, const nlohmann::json& history);

// For a document that is kept: jobs that are not over have ended like this.
void end_jobs(nlohmann::json& document, int exit_code, const std::string& summary);

}  // namespace ddp::page
