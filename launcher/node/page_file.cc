#include "launcher/node/page_file.h"

#include <utility>

#include "common/base/errc.h"
#include "common/process/write_file.h"
#include "launcher/page/page.h"
#include "launcher/page/page_document.h"

namespace ddp::node {

void PageFile::job_is_stopped(const server::Server& server) {
  if (before_stop_.is_null()) before_stop_ = server.page_document(job_id_);
}

nlohmann::json PageFile::document(const server::Server& server, int exit_code,
                                  const std::string& summary) const {
  nlohmann::json document = server.page_document(job_id_);
  if (document.at("jobs").empty() && !before_stop_.is_null()) document = before_stop_;
  page::end_jobs(document, exit_code, summary);
  return document;
}

void PageFile::show(server::Server& server, int exit_code, const std::string& summary,
                    std::function<void()> done) const {
  server.finish_feeds(
      [&] {
        nlohmann::json last = document(server, exit_code, summary);
        last.erase("report");  // It has output, which not everybody who looks may read.
        return last;
      },
      std::move(done));
}

Result<void> PageFile::write(const server::Server& server, int exit_code,
                             const std::string& summary) const {
  if (path_.empty()) return {};
  const auto written = write_file(path_, page::page_file(document(server, exit_code, summary)));
  if (written) return {};
  return make_error(Errc::kIo, "--page-file: {}", written.error().message);
}

}  // namespace ddp::node
