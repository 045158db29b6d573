# The interpreter for which worker/python is built, and its PyTorch. DDP_PYTHON_TORCH is that PyTorch's release (2.6.0), and
# DDP_PYTHON_TORCH_DIR the folder of its package. DDP_NO_PYTHON says why the package cannot be built, if it cannot.
set(DDP_NO_PYTHON)
set(DDP_PYTHON_TORCH)
find_package(Python3 QUIET COMPONENTS Interpreter Development.Module)
if(NOT Python3_FOUND)
  set(DDP_NO_PYTHON "the headers of Python are missing (python3-dev)")
  return()
endif()
# pip builds in an environment of its own, which a variable names, and in which only what it has downloaded is found. -E finds
# what the interpreter itself has.
foreach(ddp_flags_of_python "" -E)
  if(NOT DDP_PYTHON_TORCH)
    execute_process(COMMAND ${Python3_EXECUTABLE} ${ddp_flags_of_python} -c
      "import importlib.metadata as m, importlib.util as u, os; print(m.version('torch'), os.path.dirname(u.find_spec('torch').origin), sep=';')"
      OUTPUT_VARIABLE ddp_found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(ddp_found MATCHES "^([0-9]+\\.[0-9]+(\\.[0-9]+)?)[^;]*;(.+)$")
      set(DDP_PYTHON_TORCH ${CMAKE_MATCH_1})
      set(DDP_PYTHON_TORCH_DIR ${CMAKE_MATCH_3})
    endif()
  endif()
endforeach()
if(NOT DDP_PYTHON_TORCH)
  set(DDP_NO_PYTHON "${Python3_EXECUTABLE} has no PyTorch; install 2.6 or newer first")
elseif(DDP_PYTHON_TORCH VERSION_LESS 2.6)
  set(DDP_NO_PYTHON "${Python3_EXECUTABLE} has PyTorch ${DDP_PYTHON_TORCH}; the backend needs 2.6 or newer")
endif()
