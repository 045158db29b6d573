#include "launcher/page/page.h"

#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/json_text.h"
#include "launcher/page/bundle.h"

namespace ddp::page {
namespace {

// In web/index.html: where the document is, if the page has one inside.
constexpr std::string_view kPlace = "<script id=\"document\" type=\"application/json\">";

}  // namespace

std::string_view live_page() { return {kBundle, kBundleBytes}; }

std::string page_file(const nlohmann::json& document) {
  std::string text = dump_json(document);
  // No text inside may end the element.
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;)
    text.replace(at, 1, "\\u003c");
  std::string page(live_page());
  const std::size_t place = page.find(kPlace);
  DDP_CHECK(place != std::string::npos, "the page has no place for a document");
  page.insert(place + kPlace.size(), text);
  return page;
}

std::string_view page_headers() { return kBundleHeaders; }

}  // namespace ddp::page
