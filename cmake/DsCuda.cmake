# Kernels and devices for NVIDIA GPUs. The CUDA runtime is linked statically: the library loads on
# machines without a driver and says so when it is asked for a GPU. Without DS_WITH_CUDA the same
# functions exist and say that the build has none.
if(DS_WITH_CUDA)
  # 12.5 brought cudaGetDriverEntryPointByVersion.
  find_package(CUDAToolkit 12.5 REQUIRED)
  # Only its declarations: the library is opened at run time.
  find_file(DS_CUBLASLT_HEADER cublasLt.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH REQUIRED)
  set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "Compute capabilities that kernels are built for")
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know that nvcc has C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  if(DS_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${DS_CCACHE})
  endif()
  # Sums are contracted where a kernel writes fmaf itself, as on the CPU, so that both round alike.
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
    $<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda>)
  message(STATUS "CUDA ${CUDAToolkit_VERSION}: kernels for ${CMAKE_CUDA_ARCHITECTURES}; static runtime")
endif()
