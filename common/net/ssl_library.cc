#include "common/net/ssl_library.h"

#include <dlfcn.h>

namespace ddp::net {
namespace {

constexpr const char* kSslFile = "libssl.so.3";

// Looks functions up, also those of libcrypto, which libssl loads. Remembers whether one was
// missing.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}
  template <typename Function>
  void operator()(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    complete_ = complete_ && function != nullptr;
  }
  bool complete() const { return complete_; }

 private:
  void* library_;
  bool complete_ = true;
};

bool fill(void* file, SslLibrary& ssl) {
  Finder find(file);
  find("TLS_method", ssl.method);
  find("SSL_CTX_new", ssl.context_new);
  find("SSL_CTX_free", ssl.context_free);
  find("SSL_CTX_ctrl", ssl.context_control);
  find("SSL_CTX_set_num_tickets", ssl.context_set_tickets);
  find("SSL_CTX_set_default_passwd_cb", ssl.context_set_passphrase);
  find("SSL_CTX_use_certificate_chain_file", ssl.context_use_certificate);
  find("SSL_CTX_use_PrivateKey_file", ssl.context_use_key);
  find("SSL_CTX_check_private_key", ssl.context_check_key);
  find("SSL_CTX_load_verify_file", ssl.context_use_ca);
  find("SSL_CTX_set_verify", ssl.context_set_verify);
  find("SSL_new", ssl.session_new);
  find("SSL_free", ssl.session_free);
  find("SSL_set_bio", ssl.session_set_bio);
  find("SSL_set_accept_state", ssl.session_accepts);
  find("SSL_set_connect_state", ssl.session_connects);
  find("SSL_get0_param", ssl.session_parameters);
  find("SSL_do_handshake", ssl.handshake);
  find("SSL_is_init_finished", ssl.is_finished);
  find("SSL_read", ssl.read);
  find("SSL_write", ssl.write);
  find("SSL_shutdown", ssl.shutdown);
  find("SSL_get_error", ssl.get_error);
  find("SSL_get_verify_result", ssl.verify_result);
  find("X509_VERIFY_PARAM_set1_host", ssl.set_host);
  find("X509_VERIFY_PARAM_set1_ip_asc", ssl.set_address);
  find("X509_verify_cert_error_string", ssl.describe_verify);
  find("BIO_s_mem", ssl.memory_method);
  find("BIO_new", ssl.bio_new);
  find("BIO_read", ssl.bio_read);
  find("BIO_write", ssl.bio_write);
  find("ERR_clear_error", ssl.clear_errors);
  find("ERR_get_error", ssl.next_error);
  find("ERR_reason_error_string", ssl.describe_error);
  return find.complete();
}

Result<SslLibrary> open_ssl() {
  void* file = ::dlopen(kSslFile, RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) {
    return make_error(Errc::kNotFound,
                      "{} cannot be loaded ({}); --tls-cert needs it: install the package libssl3",
                      kSslFile, ::dlerror());
  }
  SslLibrary ssl;
  if (!fill(file, ssl)) {
    return make_error(Errc::kNotFound, "{} is not usable; install the package libssl3", kSslFile);
  }
  return ssl;
}

}  // namespace

Result<const SslLibrary*> SslLibrary::load() {
  static const Result<SslLibrary> library = open_ssl();
  if (!library) return library.error();
  return &*library;
}

}  // namespace ddp::net
