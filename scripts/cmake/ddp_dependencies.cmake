# What the build takes from the distribution. LibTorch is looked for in worker/, since nothing else may use it.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # It looks up what the compiler said it read: running the preprocessor first costs up to a tenth of compiling. Unless told
  # so, it leaves alone what begins with precompiled headers. Another clone of the tree finds what this one has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros
    CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()

find_package(Threads REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(Boost 1.74 CONFIG REQUIRED COMPONENTS program_options)
find_package(ZLIB REQUIRED)
find_package(GTest)   # for tests only
find_library(XXHASH_LIBRARY xxhash REQUIRED)
# Only the header: the library is loaded by who needs it (launcher/etcd).
find_path(CURL_INCLUDE_DIR curl/curl.h REQUIRED)
# Likewise (agent/process/stacks.cc); beside the compiler's own headers.
find_path(LIBDW_INCLUDE_DIR elfutils/libdwfl.h REQUIRED)

# Likewise (common/auth, common/net): only jobs with a token or TLS load libcrypto and libssl.
find_path(OPENSSL_INCLUDE_DIR openssl/hmac.h REQUIRED)

# Standalone Asio is headers only. SYSTEM, so that our warnings do not judge it.
find_path(ASIO_INCLUDE_DIR asio.hpp REQUIRED)
add_library(ddp_asio INTERFACE)
target_include_directories(ddp_asio SYSTEM INTERFACE ${ASIO_INCLUDE_DIR})
target_compile_definitions(ddp_asio INTERFACE ASIO_STANDALONE ASIO_NO_DEPRECATED)
target_link_libraries(ddp_asio INTERFACE Threads::Threads)
