#pragma once

#include <string>

namespace ddp::config {

// PEM files by which one side proves who it is and recognizes the other. For the rendezvous, all
// three or none.
struct TlsFiles {
  std::string certificate;  // --tls-cert: of this node, followed by intermediate certificates.
  std::string key;          // --tls-key: without a passphrase.
  std::string ca;  // --tls-ca: the authority that signs the certificates of the job's nodes.

  bool any() const { return !certificate.empty() || !key.empty() || !ca.empty(); }

  friend bool operator==(const TlsFiles&, const TlsFiles&) = default;
};

}  // namespace ddp::config
