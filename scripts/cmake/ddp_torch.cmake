# LibTorch as one SYSTEM interface target. Debian's TorchConfig.cmake also pulls in what only Caffe2 needs, so the three
# libraries are named directly; the layout is that of Debian's libtorch-dev and of PyTorch's own archives. Installed with the
# CMake package "ddp", for programs that use it. DDP_TORCH_VERSION is LibTorch's, DDP_TORCH_PREFIX where it is.
find_path(TORCH_INCLUDE_DIR torch/csrc/api/include/torch/torch.h REQUIRED)
find_library(TORCH_LIBRARY torch REQUIRED)
find_library(TORCH_CPU_LIBRARY torch_cpu REQUIRED)
find_library(C10_LIBRARY c10 REQUIRED)
get_filename_component(DDP_TORCH_PREFIX ${TORCH_INCLUDE_DIR} DIRECTORY)
file(STRINGS ${TORCH_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h DDP_TORCH_VERSION REGEX "^ *\"[0-9.]+\"")
string(REGEX REPLACE "^ *\"([0-9.]+)\".*" "\\1" DDP_TORCH_VERSION "${DDP_TORCH_VERSION}")
find_package(OpenMP REQUIRED COMPONENTS CXX)
add_library(ddp_libtorch INTERFACE)
target_include_directories(ddp_libtorch SYSTEM INTERFACE ${TORCH_INCLUDE_DIR}
  ${TORCH_INCLUDE_DIR}/torch/csrc/api/include)
target_link_libraries(ddp_libtorch INTERFACE ${TORCH_LIBRARY} ${TORCH_CPU_LIBRARY} ${C10_LIBRARY} OpenMP::OpenMP_CXX
  Threads::Threads)
