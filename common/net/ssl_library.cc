#include "common/net/ssl_library.h"

#include "common/base/dynamic_library.h"

namespace ddp::net {
namespace {

constexpr const char* kSslFile = "libssl.so.3";

// Also finds those of libcrypto, which libssl loads.
bool fill(const DynamicLibrary& file, SslLibrary& ssl) {
  Symbols symbols(file);
  symbols.need(ssl.method, "TLS_method");
  symbols.need(ssl.context_new, "SSL_CTX_new");
  symbols.need(ssl.context_free, "SSL_CTX_free");
  symbols.need(ssl.context_control, "SSL_CTX_ctrl");
  symbols.need(ssl.context_set_tickets, "SSL_CTX_set_num_tickets");
  symbols.need(ssl.context_set_passphrase, "SSL_CTX_set_default_passwd_cb");
  symbols.need(ssl.context_use_certificate, "SSL_CTX_use_certificate_chain_file");
  symbols.need(ssl.context_use_key, "SSL_CTX_use_PrivateKey_file");
  symbols.need(ssl.context_check_key, "SSL_CTX_check_private_key");
  symbols.need(ssl.context_use_ca, "SSL_CTX_load_verify_file");
  symbols.need(ssl.context_set_verify, "SSL_CTX_set_verify");
  symbols.need(ssl.context_set_options, "SSL_CTX_set_options");
  symbols.need(ssl.context_set_read_buffer, "SSL_CTX_set_default_read_buffer_len");
  symbols.need(ssl.context_set_ciphersuites, "SSL_CTX_set_ciphersuites");
  symbols.need(ssl.session_new, "SSL_new");
  symbols.need(ssl.session_free, "SSL_free");
  symbols.need(ssl.session_set_bio, "SSL_set_bio");
  symbols.need(ssl.session_set_fd, "SSL_set_fd");
  symbols.need(ssl.session_set_data, "SSL_set_ex_data");
  symbols.need(ssl.session_get_data, "SSL_get_ex_data");
  symbols.need(ssl.session_set_psk_client, "SSL_set_psk_client_callback");
  symbols.need(ssl.session_set_psk_server, "SSL_set_psk_server_callback");
  symbols.need(ssl.key_update, "SSL_key_update");
  symbols.need(ssl.session_accepts, "SSL_set_accept_state");
  symbols.need(ssl.session_connects, "SSL_set_connect_state");
  symbols.need(ssl.session_parameters, "SSL_get0_param");
  symbols.need(ssl.handshake, "SSL_do_handshake");
  symbols.need(ssl.is_finished, "SSL_is_init_finished");
  symbols.need(ssl.read, "SSL_read");
  symbols.need(ssl.write, "SSL_write");
  symbols.need(ssl.shutdown, "SSL_shutdown");
  symbols.need(ssl.get_error, "SSL_get_error");
  symbols.need(ssl.verify_result, "SSL_get_verify_result");
  symbols.need(ssl.set_host, "X509_VERIFY_PARAM_set1_host");
  symbols.need(ssl.set_address, "X509_VERIFY_PARAM_set1_ip_asc");
  symbols.need(ssl.describe_verify, "X509_verify_cert_error_string");
  symbols.need(ssl.memory_method, "BIO_s_mem");
  symbols.need(ssl.bio_new, "BIO_new");
  symbols.need(ssl.bio_read, "BIO_read");
  symbols.need(ssl.bio_write, "BIO_write");
  symbols.need(ssl.clear_errors, "ERR_clear_error");
  symbols.need(ssl.next_error, "ERR_get_error");
  symbols.need(ssl.describe_error, "ERR_reason_error_string");
  return symbols.missing().empty();
}

Result<SslLibrary> open_ssl() {
  const auto file = DynamicLibrary::open({kSslFile});
  if (!file) {
    return make_error(Errc::kNotFound,
                      "{} cannot be loaded ({}); --tls-cert needs it: install the package libssl3",
                      kSslFile, file.error().message);
  }
  SslLibrary ssl;
  if (!fill(*file, ssl)) {
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
