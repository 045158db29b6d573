#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace ddp::page {

// The page that shows jobs, as HTML that loads nothing else. It is made at build time from the
// files in web/ and d3. In a browser it shows what `/live` tells it (launcher/server/live_feed.h).
std::string_view live_page();

// The same page with a document (page_document.h) inside: it shows that and asks nobody.
std::string page_file(const nlohmann::json& document);

// Header lines that keep the page from loading or sending anything elsewhere.
std::string_view page_headers();

}  // namespace ddp::page
