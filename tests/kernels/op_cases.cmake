# The rows of the operator table: ds_cases, one object library of all cases_<family>.cc for the test
# programs and the benchmark, each of which takes the families that it names.
set(DS_CASE_FAMILIES linear activation gated loss norm rms_norm embedding rotary dropout elementwise reduce
  optimizer attention gemv quantize fp8 softmax transform moe latent distillation)
if(NOT TARGET ds_cases)
  list(TRANSFORM DS_CASE_FAMILIES PREPEND ${CMAKE_SOURCE_DIR}/tests/kernels/cases_ OUTPUT_VARIABLE DS_CASE_SOURCES)
  list(TRANSFORM DS_CASE_SOURCES APPEND .cc)
  ds_join_sources(ds_cases 6 "${DS_CASE_SOURCES}" "" DS_CASE_UNITS)
  add_library(ds_cases OBJECT ${DS_CASE_UNITS} ${CMAKE_SOURCE_DIR}/tests/kernels/all_cases.cc)
  target_include_directories(ds_cases PUBLIC ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(ds_cases PUBLIC ds_ops PRIVATE ds_warnings)
  target_compile_options(ds_cases PRIVATE ${DS_REFERENCE_OPTIONS})
endif()

# Gives `target` the rows of the named families.
function(ds_link_cases target)
  foreach(family IN LISTS ARGN)
    if(NOT EXISTS ${CMAKE_SOURCE_DIR}/tests/kernels/cases_${family}.cc)
      message(FATAL_ERROR "${target}: the operator table has no family ${family}")
    endif()
  endforeach()
  string(JOIN " " names ${ARGN})
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/${target}_families.cc)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"kernels/case_families.h\"
const char* const ds::testing::kCaseFamilies = \"${names}\";
" @ONLY)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:ds_cases> ${unit})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
endfunction()
