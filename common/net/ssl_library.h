#pragma once

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/base/result.h"

namespace ddp::net {

// The functions of OpenSSL's libssl that are used here, found at run time: only jobs with TLS load
// it. Never unloaded.
struct SslLibrary {
  decltype(&::TLS_method) method = nullptr;
  decltype(&::SSL_CTX_new) context_new = nullptr;
  decltype(&::SSL_CTX_free) context_free = nullptr;
  decltype(&::SSL_CTX_ctrl) context_control = nullptr;
  decltype(&::SSL_CTX_set_num_tickets) context_set_tickets = nullptr;
  decltype(&::SSL_CTX_set_default_passwd_cb) context_set_passphrase = nullptr;
  decltype(&::SSL_CTX_use_certificate_chain_file) context_use_certificate = nullptr;
  decltype(&::SSL_CTX_use_PrivateKey_file) context_use_key = nullptr;
  decltype(&::SSL_CTX_check_private_key) context_check_key = nullptr;
  decltype(&::SSL_CTX_load_verify_file) context_use_ca = nullptr;
  decltype(&::SSL_CTX_set_verify) context_set_verify = nullptr;
  decltype(&::SSL_CTX_set_options) context_set_options = nullptr;
  decltype(&::SSL_CTX_set_default_read_buffer_len) context_set_read_buffer = nullptr;
  decltype(&::SSL_CTX_set_ciphersuites) context_set_ciphersuites = nullptr;
  decltype(&::SSL_new) session_new = nullptr;
  decltype(&::SSL_free) session_free = nullptr;
  decltype(&::SSL_set_bio) session_set_bio = nullptr;
  decltype(&::SSL_set_fd) session_set_fd = nullptr;
  decltype(&::SSL_set_ex_data) session_set_data = nullptr;
  decltype(&::SSL_get_ex_data) session_get_data = nullptr;
  decltype(&::SSL_set_psk_client_callback) session_set_psk_client = nullptr;
  decltype(&::SSL_set_psk_server_callback) session_set_psk_server = nullptr;
  decltype(&::SSL_key_update) key_update = nullptr;
  decltype(&::SSL_set_accept_state) session_accepts = nullptr;
  decltype(&::SSL_set_connect_state) session_connects = nullptr;
  decltype(&::SSL_get0_param) session_parameters = nullptr;
  decltype(&::SSL_do_handshake) handshake = nullptr;
  decltype(&::SSL_is_init_finished) is_finished = nullptr;
  decltype(&::SSL_read) read = nullptr;
  decltype(&::SSL_write) write = nullptr;
  decltype(&::SSL_shutdown) shutdown = nullptr;
  decltype(&::SSL_get_error) get_error = nullptr;
  decltype(&::SSL_get_verify_result) verify_result = nullptr;
  decltype(&::X509_VERIFY_PARAM_set1_host) set_host = nullptr;
  decltype(&::X509_VERIFY_PARAM_set1_ip_asc) set_address = nullptr;
  decltype(&::X509_verify_cert_error_string) describe_verify = nullptr;
  decltype(&::BIO_s_mem) memory_method = nullptr;
  decltype(&::BIO_new) bio_new = nullptr;
  decltype(&::BIO_read) bio_read = nullptr;
  decltype(&::BIO_write) bio_write = nullptr;
  decltype(&::ERR_clear_error) clear_errors = nullptr;
  decltype(&::ERR_get_error) next_error = nullptr;
  decltype(&::ERR_reason_error_string) describe_error = nullptr;

  // Loads it on the first call. kNotFound says which package is missing. Any thread.
  static Result<const SslLibrary*> load();
};

}  // namespace ddp::net
