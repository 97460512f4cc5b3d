# The CUDA runtime, linked statically: the library then loads on machines without a driver and says
# so when it is asked for a GPU. There is no device code yet, so no CUDA compiler is enabled; the
# architectures are what kernels are compiled for (90: H100, H200).
if(DS_WITH_CUDA)
  # 12.5 brought cudaGetDriverEntryPointByVersion.
  find_package(CUDAToolkit 12.5 REQUIRED)
  set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "Compute capabilities that kernels are built for")
  message(STATUS "CUDA ${CUDAToolkit_VERSION}: the device layer; static runtime")
endif()
