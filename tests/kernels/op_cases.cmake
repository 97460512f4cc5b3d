# One object library ds_cases_<family> per cases_<family>.cc that exists, shared by the test
# programs and the benchmark. DS_CASE_FAMILIES lists them.
set(DS_CASE_FAMILIES)
foreach(family linear activation gated loss norm rms_norm embedding rotary dropout elementwise reduce
        optimizer attention gemv quantize fp8 softmax transform moe latent distillation)
  if(EXISTS ${CMAKE_SOURCE_DIR}/tests/kernels/cases_${family}.cc)
    list(APPEND DS_CASE_FAMILIES ${family})
    if(NOT TARGET ds_cases_${family})
      add_library(ds_cases_${family} OBJECT ${CMAKE_SOURCE_DIR}/tests/kernels/cases_${family}.cc)
      target_include_directories(ds_cases_${family} PUBLIC ${CMAKE_SOURCE_DIR}/tests)
      target_link_libraries(ds_cases_${family} PUBLIC ds_ops PRIVATE ds_warnings)
      target_compile_options(ds_cases_${family} PRIVATE ${DS_REFERENCE_OPTIONS})
    endif()
  endif()
endforeach()

# What finds the families of a program, once for all programs.
if(NOT TARGET ds_all_cases)
  add_library(ds_all_cases OBJECT ${CMAKE_SOURCE_DIR}/tests/kernels/all_cases.cc)
  target_include_directories(ds_all_cases PUBLIC ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(ds_all_cases PUBLIC ds_ops PRIVATE ds_warnings)
endif()

# Gives `target` the rows of the named families.
function(ds_link_cases target)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:ds_all_cases>)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  foreach(family IN LISTS ARGN)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:ds_cases_${family}>)
  endforeach()
endfunction()
