# LibTorch as one SYSTEM interface target. Debian's TorchConfig.cmake also pulls in what only Caffe2 needs, so the three
# libraries are named directly; the layout is Debian's libtorch-dev.
find_path(TORCH_INCLUDE_DIR torch/csrc/api/include/torch/torch.h REQUIRED)
find_library(TORCH_LIBRARY torch REQUIRED)
find_library(TORCH_CPU_LIBRARY torch_cpu REQUIRED)
find_library(C10_LIBRARY c10 REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
add_library(ddp_libtorch INTERFACE)
target_include_directories(ddp_libtorch SYSTEM INTERFACE ${TORCH_INCLUDE_DIR}
  ${TORCH_INCLUDE_DIR}/torch/csrc/api/include)
target_link_libraries(ddp_libtorch INTERFACE ${TORCH_LIBRARY} ${TORCH_CPU_LIBRARY} ${C10_LIBRARY} OpenMP::OpenMP_CXX
  Threads::Threads)
