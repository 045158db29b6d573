# One way to declare a library, a program and a test, so that flags and include paths are set in one place.

add_library(ddp_flags INTERFACE)
target_compile_options(ddp_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor)
if(DDP_WERROR)
  target_compile_options(ddp_flags INTERFACE -Werror)
endif()
if(DDP_SANITIZE)
  target_compile_options(ddp_flags INTERFACE -fsanitize=${DDP_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(ddp_flags INTERFACE -fsanitize=${DDP_SANITIZE})
  # Two findings of g++ 12 inside Asio and libstdc++ that appear only with sanitizers (reference/style.md, 7.4).
  target_compile_options(ddp_flags INTERFACE -Wno-mismatched-new-delete -Wno-maybe-uninitialized)
  # UCX replaces mmap and its like in the running process, as sanitizers do: ThreadSanitizer crashes.
  set(ddp_test_environment "UCX_MEM_EVENTS=set:n")
  if(DDP_SANITIZE MATCHES "thread")
    target_compile_options(ddp_flags INTERFACE -Wno-tsan)
    # It takes what lies before a loaded library's thread-local memory for glibc 2.19's header.
    list(APPEND ddp_test_environment "TSAN_OPTIONS=path_list_append:intercept_tls_get_addr=0")
  endif()
endif()
target_include_directories(ddp_flags INTERFACE ${CMAKE_SOURCE_DIR})

# ddp_library(NAME SOURCES file... LINK target...): a folder's library. Headers are found from the root of the tree.
function(ddp_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(${name} PUBLIC ${ARG_LINK} PRIVATE ddp_flags)
    target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_LINK})
    target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR})
  endif()
endfunction()

# ddp_program(NAME SOURCES file... LINK target...): a binary in build/<preset>/bin.
function(ddp_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} ddp_flags)
  # Unneeded libraries cost start-up time, which is a figure of bench/.
  target_link_options(${name} PRIVATE -Wl,--as-needed)
endfunction()

# ddp_test(NAME SOURCES file... LINK target... [LABELS l...] [TIMEOUT seconds]): a GoogleTest binary that is one ctest.
# DDP_BIN_DIR names the folder of the built programs for tests that start them.
function(ddp_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test-bin)
  target_link_libraries(${name} PRIVATE ${ARG_LINK} ddp_flags GTest::gtest GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT "DDP_BIN_DIR=${CMAKE_BINARY_DIR}/bin;DDP_SOURCE_DIR=${CMAKE_SOURCE_DIR}"
    ENVIRONMENT_MODIFICATION "${ddp_test_environment}")
endfunction()

# ddp_unity(NAME COUNT): that many of the target's sources share a translation unit. For sources whose compile time is that
# of their headers, LibTorch's above all; -DDDP_UNITY=OFF compiles them one by one, which is quicker while one of them is being
# changed, and finds what a source forgets to include. Sources that have the same name twice go into different units.
function(ddp_unity name count)
  if(DDP_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${count})
  endif()
endfunction()
