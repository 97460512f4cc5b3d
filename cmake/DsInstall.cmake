# What an installation holds: libds, the headers, the program, ds.pc for pkg-config and
# dsConfig.cmake for find_package(ds), licences. All of it may be moved after installation. Components:
# library, development, program, and mpi where the plug-in is built.
include(CMakePackageConfigHelpers)

install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

if(TARGET ds)
  # One folder that holds all that a system need not have: the C and C++ run-time libraries stay out.
  if(DS_INSTALL_DEPENDENCIES)
    set_property(TARGET ds PROPERTY INSTALL_RPATH "$ORIGIN")
    set(DS_DEPENDENCY_SET RUNTIME_DEPENDENCY_SET ds_dependencies)
    install(RUNTIME_DEPENDENCY_SET ds_dependencies
      PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+)\\.so"
      LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
  endif()
  install(TARGETS ds EXPORT dsTargets ${DS_DEPENDENCY_SET}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    COMPONENT library NAMELINK_COMPONENT development)
  set(DS_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/ds)
  install(EXPORT dsTargets NAMESPACE ds:: DESTINATION ${DS_CMAKE_DIR} COMPONENT development)
  configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/dsConfig.cmake.in
    ${CMAKE_BINARY_DIR}/dsConfig.cmake INSTALL_DESTINATION ${DS_CMAKE_DIR}
    NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  # Within a major version (before 1.0: within a minor one) the ABI only grows.
  if(PROJECT_VERSION_MAJOR EQUAL 0)
    set(DS_COMPATIBILITY SameMinorVersion)
  else()
    set(DS_COMPATIBILITY SameMajorVersion)
  endif()
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/dsConfigVersion.cmake
    VERSION ${PROJECT_VERSION} COMPATIBILITY ${DS_COMPATIBILITY})
  install(FILES ${CMAKE_BINARY_DIR}/dsConfig.cmake ${CMAKE_BINARY_DIR}/dsConfigVersion.cmake
    DESTINATION ${DS_CMAKE_DIR} COMPONENT development)

  # pkg-config finds the prefix from where ds.pc lies, so that the tree can be moved.
  file(RELATIVE_PATH DS_PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" DS_PC_UP "${DS_PC_UP}")
  if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    set(DS_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
    set(DS_PC_LIBDIR ${CMAKE_INSTALL_LIBDIR})
  else()
    set(DS_PC_PREFIX "\${pcfiledir}/${DS_PC_UP}")
    set(DS_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  endif()
  if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(DS_PC_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR})
  else()
    set(DS_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
  endif()
  configure_file(${CMAKE_SOURCE_DIR}/cmake/ds.pc.in ${CMAKE_BINARY_DIR}/ds.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/ds.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
    COMPONENT development)
endif()

# The API reference, when Doxygen is there: `ninja docs`.
find_program(DS_DOXYGEN doxygen)
if(DS_DOXYGEN)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/docs)
  add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -E env DS_DOCS_OUT=${CMAKE_BINARY_DIR}/docs
            ${DS_DOXYGEN} docs/Doxyfile
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    COMMENT "API reference in ${CMAKE_BINARY_DIR}/docs/html" VERBATIM)
  if(DS_BUILD_TESTS)
    foreach(file Doxyfile Doxyfile.strict)
      add_test(NAME docs.${file} COMMAND ${DS_DOXYGEN} docs/${file}
        WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      set_tests_properties(docs.${file} PROPERTIES
        ENVIRONMENT DS_DOCS_OUT=${CMAKE_BINARY_DIR}/docs RESOURCE_LOCK docs)
    endforeach()
  endif()
else()
  message(STATUS "doxygen is not installed: no target docs and no tests docs.*")
endif()
