# Libraries that the build takes from the distribution. Only worker/ looks for LibTorch, since nothing else may use it.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # CCACHE_DEPEND: ccache uses the compiler's list of files instead of the preprocessor, which would cost up to a tenth of
  # compiling. CCACHE_SLOPPINESS: without it, ccache skips sources that begin with precompiled headers. CCACHE_BASEDIR and
  # CCACHE_NOHASHDIR: other clones of the tree find what this one has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros
    CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
# Only the headers: common/auth and common/net load libcrypto and libssl, only in jobs with a token or TLS.
find_path(OPENSSL_INCLUDE_DIR openssl/hmac.h REQUIRED)
# Headers only: what worker/tensorboard writes.
find_path(PROTOZERO_INCLUDE_DIR protozero/pbf_builder.hpp REQUIRED)
find_path(BOOST_CRC_INCLUDE_DIR boost/crc.hpp REQUIRED)
if(SKBUILD)
  return()  # The Python package needs no more.
endif()
find_package(spdlog REQUIRED)
find_package(Boost 1.74 CONFIG REQUIRED COMPONENTS program_options)
find_package(ZLIB REQUIRED)
find_package(GTest)   # for tests only
# Only the header: launcher/etcd loads the library at run time.
find_path(CURL_INCLUDE_DIR curl/curl.h REQUIRED)
# Raft for launcher/replicas.
find_path(RAFT_INCLUDE_DIR raft.h REQUIRED)
find_library(RAFT_LIBRARY raft REQUIRED)
# Draws ddp-run top.
find_path(NCURSESW_INCLUDE_DIR ncursesw/curses.h REQUIRED)
find_library(NCURSESW_LIBRARY ncursesw REQUIRED)
find_library(TINFO_LIBRARY tinfo REQUIRED)
# Makes launcher/page's one file of its parts and d3's.
find_program(DDP_PYTHON3 python3 REQUIRED)
# Each one after those that it needs. All of d3 is twice as large.
set(DDP_D3_PARTS)
foreach(part array collection color interpolate format time time-format path scale selection shape axis)
  find_file(DDP_D3_${part} d3-${part}.min.js PATHS /usr/share/nodejs/d3-${part}/dist REQUIRED NO_DEFAULT_PATH)
  list(APPEND DDP_D3_PARTS ${DDP_D3_${part}})
endforeach()
# Only the header: agent/process/stacks.cc loads the library at run time.
find_path(LIBDW_INCLUDE_DIR elfutils/libdwfl.h REQUIRED)

# Standalone Asio is headers only. SYSTEM, so that our warning flags do not apply to it.
find_path(ASIO_INCLUDE_DIR asio.hpp REQUIRED)
add_library(ddp_asio INTERFACE)
target_include_directories(ddp_asio SYSTEM INTERFACE ${ASIO_INCLUDE_DIR})
target_compile_definitions(ddp_asio INTERFACE ASIO_STANDALONE ASIO_NO_DEPRECATED)
target_link_libraries(ddp_asio INTERFACE Threads::Threads)
