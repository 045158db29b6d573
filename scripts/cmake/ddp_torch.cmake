# LibTorch as one SYSTEM interface target. Debian's TorchConfig.cmake also pulls in what only Caffe2 needs, so the three
# libraries are named directly. Works with the layout of Debian's libtorch-dev, of PyTorch's own archives and of pip's
# package. Also installed with the CMake package "ddp", for programs that use it. DDP_TORCH_VERSION is LibTorch's version, and
# DDP_TORCH_PREFIX its folder.

# torch.utils.cmake_prefix_path, which CMAKE_PREFIX_PATH names, is share/cmake in LibTorch's folder, not the folder itself.
string(REPLACE ":" ";" ddp_environment_prefixes "$ENV{CMAKE_PREFIX_PATH}")
find_path(TORCH_CONFIG_DIR TorchConfig.cmake HINTS ${Torch_DIR} ${CMAKE_PREFIX_PATH} ${ddp_environment_prefixes}
  PATH_SUFFIXES Torch share/cmake/Torch NO_DEFAULT_PATH)
set(ddp_torch_hint)
if(TORCH_CONFIG_DIR)
  get_filename_component(ddp_torch_hint ${TORCH_CONFIG_DIR}/../../.. ABSOLUTE)
  file(STRINGS ${TORCH_CONFIG_DIR}/TorchConfig.cmake ddp_old_abi REGEX "_GLIBCXX_USE_CXX11_ABI=0")
  if(ddp_old_abi)
    message(FATAL_ERROR "LibTorch in ${ddp_torch_hint} was built with C++11's old ABI (_GLIBCXX_USE_CXX11_ABI=0), whose strings \
are not those of this compiler; take a package of PyTorch 2.7 or newer, or PyTorch's archive \"cxx11 ABI\"")
  endif()
endif()
# Not as HINTS: all folders of CMAKE_PREFIX_PATH are searched before HINTS, and another of them may hold a LibTorch, too.
if(ddp_torch_hint)
  find_path(TORCH_INCLUDE_DIR torch/csrc/api/include/torch/torch.h PATHS ${ddp_torch_hint}/include NO_DEFAULT_PATH)
endif()
find_path(TORCH_INCLUDE_DIR torch/csrc/api/include/torch/torch.h REQUIRED)
get_filename_component(DDP_TORCH_PREFIX ${TORCH_INCLUDE_DIR} DIRECTORY)
foreach(ddp_library torch torch_cpu c10)
  string(TOUPPER ${ddp_library}_LIBRARY ddp_variable)
  find_library(${ddp_variable} ${ddp_library} PATHS ${DDP_TORCH_PREFIX}/lib NO_DEFAULT_PATH)
  find_library(${ddp_variable} ${ddp_library} REQUIRED)
endforeach()

set(ddp_version_file ${TORCH_INCLUDE_DIR}/torch/headeronly/version.h)   # 2.14
if(NOT EXISTS ${ddp_version_file})
  set(ddp_version_file ${TORCH_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h)
endif()
file(STRINGS ${ddp_version_file} DDP_TORCH_VERSION REGEX "^ *\"[0-9.]+\"")
string(REGEX REPLACE "^ *\"([0-9.]+)\".*" "\\1" DDP_TORCH_VERSION "${DDP_TORCH_VERSION}")
find_package(OpenMP REQUIRED COMPONENTS CXX)
add_library(ddp_libtorch INTERFACE)
target_include_directories(ddp_libtorch SYSTEM INTERFACE ${TORCH_INCLUDE_DIR}
  ${TORCH_INCLUDE_DIR}/torch/csrc/api/include)
# A LibTorch with CUDA has its kernels in a library that no program refers to: they register themselves when it is loaded. A linker
# told --as-needed (Ubuntu's compilers, and our own targets) would drop it, and the program would not see any device. Not for a
# plug-in, whose process has a LibTorch already.
find_library(TORCH_CUDA_LIBRARY torch_cuda PATHS ${DDP_TORCH_PREFIX}/lib NO_DEFAULT_PATH)
if(TORCH_CUDA_LIBRARY)
  set(ddp_cuda "-Wl,--push-state,--no-as-needed,${TORCH_CUDA_LIBRARY},--pop-state")
  target_link_libraries(ddp_libtorch INTERFACE "$<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:TYPE>,MODULE_LIBRARY>>:${ddp_cuda}>")
endif()
target_link_libraries(ddp_libtorch INTERFACE ${TORCH_LIBRARY} ${TORCH_CPU_LIBRARY} ${C10_LIBRARY} OpenMP::OpenMP_CXX
  Threads::Threads)
# PyTorch's own packages bring the headers of another fmt than the one that we link, and in some places they are found first. Then
# the sources that include LibTorch take fmt from whichever headers they find.
if(EXISTS ${TORCH_INCLUDE_DIR}/fmt/format.h AND NOT TORCH_INCLUDE_DIR IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
  target_compile_definitions(ddp_libtorch INTERFACE FMT_HEADER_ONLY)
endif()
