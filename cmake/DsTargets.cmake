# ds_layer(<name> SOURCES ... DEPS ...): one floor of the house, a static library ds_<name>.
# The include check (tests/lint/check_layers.py) holds the order; DEPS makes the link follow it.
function(ds_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(ds_${name} STATIC ${ARG_SOURCES})
  target_include_directories(ds_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  target_link_libraries(ds_${name} PUBLIC ${ARG_DEPS} PRIVATE ds_warnings)
endfunction()

# ds_test(<name> SOURCES ... DEPS ... [LABELS ...] [TIMEOUT seconds]): a GoogleTest program whose
# cases become ctest tests <name>.<Suite>.<Case>.
function(ds_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main
    ds_warnings)
  # Only for the sources that read files of the tree: the others compile to the same in every
  # checkout, and the compiler cache knows them.
  foreach(source IN LISTS ARG_SOURCES)
    file(STRINGS ${source} uses REGEX "DS_TEST_(DATA|SOURCE)" LIMIT_COUNT 1)
    if(uses)
      set_property(SOURCE ${source} PROPERTY COMPILE_DEFINITIONS
        DS_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data" DS_TEST_SOURCE="${CMAKE_SOURCE_DIR}")
    endif()
  endforeach()
  # Parameters have names of their own; their values are bytes to GoogleTest.
  gtest_discover_tests(${name} TEST_PREFIX "${name}." NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
