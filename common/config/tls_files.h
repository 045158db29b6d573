#pragma once

#include <string>

namespace ddp::config {

// Files in PEM by which this node shows who it is, and knows the others. All three or none.
struct TlsFiles {
  std::string certificate;  // --tls-cert: this node's, with what leads to the authority behind it.
  std::string key;          // --tls-key: without a passphrase.
  std::string ca;           // --tls-ca: who signs the certificates of the job's nodes.

  bool any() const { return !certificate.empty() || !key.empty() || !ca.empty(); }

  friend bool operator==(const TlsFiles&, const TlsFiles&) = default;
};

}  // namespace ddp::config
