#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/config/tls_files.h"
#include "common/net/stream_filter.h"

namespace ddp::net {

// TLS 1.3 between the nodes of a job. Each node shows a certificate that the job's authority has
// signed. One thread.
class TlsContext {
 public:
  // Loads libssl and the files. kInvalidArgument names the flag, the file and what is wrong with
  // it. kNotFound names a missing library.
  static Result<std::shared_ptr<const TlsContext>> create(const config::TlsFiles& files);
  virtual ~TlsContext() = default;

  // The connecting end. `name`: the host name or numeric address that the peer's certificate must
  // hold; empty: any certificate of the authority is accepted. Errors of the filter are
  // permission_denied (std::errc): one side does not accept the other.
  virtual std::unique_ptr<StreamFilter> client(const std::string& name) const = 0;
  // The accepting end. It accepts any certificate of the authority.
  virtual std::unique_ptr<StreamFilter> server() const = 0;
};

}  // namespace ddp::net
