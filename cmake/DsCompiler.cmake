# Language level, warnings, sanitizers, ccache: the same for every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(DS_CCACHE ccache)
if(DS_CCACHE)
  # Paths of the checkout do not count, so that checkouts share what was compiled.
  set(DS_CCACHE ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    ${DS_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${DS_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DS_CCACHE})
endif()

# Floating-point results are part of the contract: no contraction beyond what a kernel writes out.
add_compile_options(-ffp-contract=off -fno-math-errno)
# C++ only: a failed allocation and every other failure travels as an exception up to the C fence.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-trapping-math>)

# gcc collects its garbage at a heap of 128 MiB for the first time, which most units of tests outgrow several times:
# about a fifth of what the largest cost to compile (docs/testing.md), for 0.2 GB more in those that were looked at.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=500000>)

add_library(ds_warnings INTERFACE)
target_compile_options(ds_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wextra-semi>
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wpedantic>)
option(DS_WERROR "Treat warnings as errors" OFF)
if(DS_WERROR)
  target_compile_options(ds_warnings INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()

if(DS_SANITIZE)
  add_compile_options(-fsanitize=${DS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${DS_SANITIZE})
endif()
option(DS_COVERAGE "Instrument for coverage" OFF)
if(DS_COVERAGE)
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()
# Of references and the rows of the operator table: slow simple loops, of which gcc makes vectors from -O3 on.
if(NOT DS_SANITIZE AND NOT DS_COVERAGE)
  set(DS_REFERENCE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O3>)
endif()
