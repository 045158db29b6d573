# Functions that declare libraries, programs and tests, so that flags and include paths are set in one place.

add_library(ddp_flags INTERFACE)
target_compile_options(ddp_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor)
# g++ collects garbage over and over in the gigabyte that LibTorch's headers become, and finds little. That takes a tenth of
# its time, and a third with shared headers. The value is in KiB. A unit with LibTorch takes 1.8 GiB of memory with it, and
# 1.5 without.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(ddp_flags INTERFACE "SHELL:--param ggc-min-heapsize=4194304")
endif()
if(DDP_WERROR)
  target_compile_options(ddp_flags INTERFACE -Werror)
endif()
if(DDP_SANITIZE)
  target_compile_options(ddp_flags INTERFACE -fsanitize=${DDP_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(ddp_flags INTERFACE -fsanitize=${DDP_SANITIZE})
  # Two findings of g++ 12 inside Asio and libstdc++ that appear only with sanitizers.
  target_compile_options(ddp_flags INTERFACE -Wno-mismatched-new-delete -Wno-maybe-uninitialized)
  # UCX replaces mmap and similar functions in the running process, as sanitizers do, and then ThreadSanitizer crashes.
  set(ddp_test_environment "UCX_MEM_EVENTS=set:n")
  if(DDP_SANITIZE MATCHES "thread")
    target_compile_options(ddp_flags INTERFACE -Wno-tsan)
    # ThreadSanitizer takes the bytes before a loaded library's thread-local memory for a header of glibc 2.19.
    list(APPEND ddp_test_environment "TSAN_OPTIONS=path_list_append:intercept_tls_get_addr=0")
  endif()
endif()
target_include_directories(ddp_flags INTERFACE ${CMAKE_SOURCE_DIR})
# Most tests spend their time in the code under test, which is optimized. Compiling the tests without optimization takes a
# fifth less time.
add_library(ddp_test_flags INTERFACE)
target_compile_options(ddp_test_flags INTERFACE $<$<CONFIG:Release>:-O0>)
# Some tests compare or simulate much, so they are optimized. With -O1, g++ 12 finds bounds passed inside libstdc++'s sum of a
# string and a literal.
add_library(ddp_optimized_test_flags INTERFACE)
target_compile_options(ddp_optimized_test_flags INTERFACE $<$<CONFIG:Release>:-O1>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(ddp_optimized_test_flags INTERFACE "$<$<CONFIG:Release>:-Wno-array-bounds;-Wno-stringop-overflow>")
endif()
# With LibTorch's many libraries, the default linker takes two seconds for a test; these linkers take a fraction of one.
find_program(DDP_TEST_LINKER NAMES ld.mold ld.gold ld.lld)
if(DDP_TEST_LINKER AND NOT DDP_SANITIZE)
  get_filename_component(linker ${DDP_TEST_LINKER} NAME)
  string(REPLACE "ld." "" linker ${linker})
  set(test_linker -fuse-ld=${linker})
endif()
foreach(flags ddp_test_flags ddp_optimized_test_flags)
  target_link_libraries(${flags} INTERFACE ddp_flags GTest::gtest GTest::gmock)
  target_link_options(${flags} INTERFACE ${test_linker})
endforeach()

# ddp_headers(NAME HEADERS header... LINK target...): headers that are parsed once for all targets that name them by ddp_share.
function(ddp_headers name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LINK" ${ARGN})
  if(DDP_SHARE_HEADERS)
    file(CONFIGURE OUTPUT ${name}.cc CONTENT "// Only its headers matter.\n")
    add_library(${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
    target_link_libraries(${name} PRIVATE ${ARG_LINK})
    target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  endif()
endfunction()

# ddp_share(NAME headers): the target's sources begin with those headers. Its options are those of the headers' target.
function(ddp_share name headers)
  if(DDP_SHARE_HEADERS)
    target_precompile_headers(${name} REUSE_FROM ${headers})
  endif()
endfunction()

# ddp_library(NAME SOURCES file... LINK target... [UNIT count]): a folder's library. Headers are found from the root of the tree.
# UNIT: ddp_unity().
function(ddp_library name)
  cmake_parse_arguments(ARG "" "UNIT" "SOURCES;LINK" ${ARGN})
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
    if(NOT ARG_UNIT)
      set(ARG_UNIT 10)
    endif()
    ddp_unity(${name} ${ARG_UNIT})
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

# ddp_place_test(NAME COST seconds [WAITS TRUE]): how a test is scheduled among tests that run in parallel (tests/README.md).
# COST: its time when it runs alone; the longest begin first. WAITS: it mostly waits, so it takes one slot instead of two.
function(ddp_place_test name)
  cmake_parse_arguments(ARG "" "COST;WAITS" "" ${ARGN})
  if(ARG_WAITS)
    set(slots 1)
  else()
    set(slots 2)
  endif()
  set_tests_properties(${name} PROPERTIES PROCESSORS ${slots} COST ${ARG_COST})
endfunction()

# ddp_test(NAME [TORCH | OPTIMIZED] SOURCES file... LINK target... [LABELS l...] [COST seconds] [WAITS]): a
# GoogleTest binary that is one ctest. TORCH: it includes LibTorch's headers. OPTIMIZED: its own loops take seconds without.
# COST and WAITS: ddp_place_test().
# DDP_BIN_DIR names the folder of the built programs for tests that start them.
function(ddp_test name)
  cmake_parse_arguments(ARG "TORCH;OPTIMIZED;WAITS" "COST" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test-bin)
  set(kind test)
  if(ARG_OPTIMIZED)
    set(kind optimized_test)
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_LINK} ddp_${kind}_flags GTest::gtest_main)
  if(ARG_TORCH)
    ddp_share(${name} ddp_torch_test_support)
  else()
    ddp_share(${name} ddp_${kind}_headers)
  endif()
  # All suites, except those that have a ctest of their own (ddp_suite()). A filter of "-" alone means all.
  add_test(NAME ${name} COMMAND ${name} --gtest_filter=-$<JOIN:$<TARGET_PROPERTY:${name},DDP_SUITES>,:>)
  if(NOT ARG_COST)
    set(ARG_COST 1)
  endif()
  ddp_place_test(${name} COST ${ARG_COST} WAITS ${ARG_WAITS})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}"
    ENVIRONMENT "DDP_BIN_DIR=${CMAKE_BINARY_DIR}/bin;DDP_SOURCE_DIR=${CMAKE_SOURCE_DIR}"
    ENVIRONMENT_MODIFICATION "${ddp_test_environment}")
endfunction()

# ddp_suite(NAME PROGRAM test FILTER pattern... [COST seconds] [WAITS]): some suites of a ddp_test() as a ctest
# of their own, which runs beside the rest. Give each suite that takes seconds one. The patterns are GoogleTest's.
function(ddp_suite name)
  cmake_parse_arguments(ARG "WAITS" "PROGRAM;COST" "FILTER" ${ARGN})
  set_property(TARGET ${ARG_PROGRAM} APPEND PROPERTY DDP_SUITES ${ARG_FILTER})
  list(JOIN ARG_FILTER ":" filter)
  add_test(NAME ${name} COMMAND ${ARG_PROGRAM} --gtest_filter=${filter})
  foreach(property LABELS ENVIRONMENT ENVIRONMENT_MODIFICATION)
    get_test_property(${ARG_PROGRAM} ${property} value)
    set_tests_properties(${name} PROPERTIES ${property} "${value}")
  endforeach()
  ddp_place_test(${name} COST ${ARG_COST} WAITS ${ARG_WAITS})
endfunction()

# ddp_script_test(NAME SCRIPT file [ARGS argument...] [LABELS l...] [COST seconds] [WAITS]): a Python script
# that is one ctest. COST and WAITS: ddp_place_test(). The script's arguments are the folder of the built programs, then ARGS.
# Status 77 means that this machine lacks what the test needs.
function(ddp_script_test name)
  cmake_parse_arguments(ARG "WAITS" "SCRIPT;COST" "ARGS;LABELS" ${ARGN})
  add_test(NAME ${name} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT} ${CMAKE_BINARY_DIR}/bin ${ARG_ARGS})
  if(NOT ARG_COST)
    set(ARG_COST 5)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "process;${ARG_LABELS}" SKIP_RETURN_CODE 77)
  ddp_place_test(${name} COST ${ARG_COST} WAITS ${ARG_WAITS})
endfunction()

# ddp_unity(NAME COUNT): up to COUNT of the target's sources share a translation unit, and so share the cost of their headers,
# above all LibTorch's. -DDDP_SHARE_HEADERS=OFF compiles them one by one, which is quicker while one of them is being changed, and
# finds missing includes. A source with options of its own or with SKIP_UNITY_BUILD_INCLUSION stays alone. CMake's own
# UNITY_BUILD is not used, because it names the sources by absolute paths, so that ccache finds nothing from another clone.
function(ddp_unity name count)
  if(DDP_SHARE_HEADERS)
    # At the end of the folder's CMakeLists.txt, when all its sources are known.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL ddp_join_sources ${name} ${count})")
  endif()
endfunction()
function(ddp_join_sources name count)
  get_target_property(sources ${name} SOURCES)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(alone)
  set(together)
  foreach(source ${sources})
    set(is_alone FALSE)
    foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS SKIP_UNITY_BUILD_INCLUSION)
      get_source_file_property(value ${source} ${property})
      if(value)
        set(is_alone TRUE)
      endif()
    endforeach()
    if(is_alone)
      list(APPEND alone ${source})
    else()
      list(APPEND together ${source})
    endif()
  endforeach()
  list(LENGTH together left)
  # In units of the same size.
  math(EXPR units "(${left} + ${count} - 1) / ${count}")
  set(number 0)
  while(left GREATER 0)
    math(EXPR size "(${left} + ${units} - ${number} - 1) / (${units} - ${number})")
    list(SUBLIST together 0 ${size} batch)
    list(TRANSFORM batch REPLACE "(.+)" "#include \"${folder}/\\1\"" OUTPUT_VARIABLE includes)
    list(JOIN includes "\n" includes)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/unity/${name}_${number}.cc)
    file(CONFIGURE OUTPUT ${unit} CONTENT "${includes}\n" @ONLY)
    list(APPEND alone ${unit})
    list(LENGTH batch taken)
    math(EXPR number "${number} + 1")
    math(EXPR left "${left} - ${taken}")
    if(left GREATER 0)
      list(SUBLIST together ${taken} -1 together)
    endif()
  endwhile()
  set_target_properties(${name} PROPERTIES SOURCES "${alone}")
endfunction()
