option(DS_SOURCES_APART "Compile every source as a translation unit of its own" OFF)

# Puts at most `count` of `sources` into one translation unit each, and the units into `out`: more than half of what
# a source costs to compile is headers. The paths in a unit are relative to the root, so that it is the same in
# every checkout and the compiler cache knows it. Sources in `apart` stay as they are, and so does what is no source.
function(ds_join_sources name count sources apart out)
  set(units ${apart})
  set(joined "")
  foreach(source IN LISTS sources)
    if(source IN_LIST apart)
      continue()
    endif()
    if(DS_SOURCES_APART OR NOT source MATCHES "\\.cc$")
      list(APPEND units ${source})
    else()
      list(APPEND joined ${source})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES units)
  list(LENGTH joined all)
  set(first 0)
  while(first LESS all)
    list(SUBLIST joined ${first} ${count} batch)
    list(LENGTH batch length)
    if(length EQUAL 1)
      list(APPEND units ${batch})
    else()
      # gcc takes classes of an included source for those of a header.
      string(CONCAT text "#if defined(__GNUC__) && !defined(__clang__)\n"
                         "#pragma GCC diagnostic ignored \"-Wsubobject-linkage\"\n#endif\n")
      foreach(source IN LISTS batch)
        cmake_path(ABSOLUTE_PATH source NORMALIZE)
        cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
        string(APPEND text "#include \"${source}\"\n")
      endforeach()
      set(unit ${CMAKE_CURRENT_BINARY_DIR}/${name}_${first}.cc)
      file(CONFIGURE OUTPUT ${unit} CONTENT "${text}" @ONLY)
      list(APPEND units ${unit})
    endif()
    math(EXPR first "${first} + ${count}")
  endwhile()
  set(${out} ${units} PARENT_SCOPE)
endfunction()

# ds_layer(<name> SOURCES ... [APART sources] DEPS ...): one layer, a static library ds_<name>.
# The include check (tests/lint/check_layers.py) holds the order; DEPS makes the link follow it.
function(ds_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;APART;DEPS" ${ARGN})
  ds_join_sources(ds_${name} 12 "${ARG_SOURCES}" "${ARG_APART}" units)
  add_library(ds_${name} STATIC ${units})
  target_include_directories(ds_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  target_link_libraries(ds_${name} PUBLIC ${ARG_DEPS} PRIVATE ds_warnings)
endfunction()

# ds_test(<name> SOURCES ... DEPS ... [APART sources] [LABELS ...] [TIMEOUT seconds]): a GoogleTest program
# whose cases become ctest tests <name>.<Suite>.<Case>. Those APART are translation units of their own, for
# names that others have, too.
function(ds_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;APART;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(DS_SANITIZE)  # everything takes several times as long
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")
  endif()
  ds_join_sources(${name} 6 "${ARG_SOURCES}" "${ARG_APART}" units)
  add_executable(${name} ${units})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} test_support GTest::gtest GTest::gmock GTest::gtest_main
    ds_warnings)
  # A fifth to a third less to compile than with -O1 (docs/testing.md). What is tested stays as it is shipped.
  target_compile_options(${name} PRIVATE -Og)
  # Parameters have names of their own; their values are bytes to GoogleTest.
  gtest_discover_tests(${name} TEST_PREFIX "${name}." NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
