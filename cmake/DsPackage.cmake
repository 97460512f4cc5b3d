# Licences in every installation, and Debian packages by `cpack -G DEB`: libds0.5 (the ABI's version), libds-dev, ds, and
# libds0.5-mpi where the MPI plug-in is built. scripts/package calls both.
include(DsThirdParty)
set(DS_THIRD_PARTY_FILE ${CMAKE_BINARY_DIR}/third-party.txt)
ds_write_third_party(${DS_THIRD_PARTY_FILE})

set(DS_DEB_LIBRARY libds${DS_ABI_VERSION})
set(DS_COMPONENTS library development program)
set(DS_DEB_NAME_library ${DS_DEB_LIBRARY})
set(DS_DEB_NAME_development libds-dev)
set(DS_DEB_NAME_program ds)
set(DS_DEB_NAME_mpi ${DS_DEB_LIBRARY}-mpi)
if(DS_HAVE_MPI)
  list(APPEND DS_COMPONENTS mpi)
endif()

if(DS_DEB_PACKAGES)
  # Each package carries its own copyright file, the only document that slim systems keep.
  set(text "The text of the Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0.\n")
  file(READ ${DS_THIRD_PARTY_FILE} third_party)
  file(WRITE ${CMAKE_BINARY_DIR}/debian/binary/copyright "${text}${third_party}")
  file(WRITE ${CMAKE_BINARY_DIR}/debian/source/copyright
    "ds ${PROJECT_VERSION} is licensed under the Apache License 2.0. ${text}")
  foreach(component IN LISTS DS_COMPONENTS)
    # Headers, and a plug-in that is linked with the system's libraries, hold nobody else's code.
    set(kind binary)
    if(component MATCHES "^(development|mpi)$")
      set(kind source)
    endif()
    install(FILES ${CMAKE_BINARY_DIR}/debian/${kind}/copyright COMPONENT ${component}
      DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${DS_DEB_NAME_${component}})
  endforeach()
else()
  install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${DS_THIRD_PARTY_FILE} COMPONENT library
    DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()

find_program(DS_GZIP gzip)
if(DS_GZIP)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/ds.1.in ${CMAKE_BINARY_DIR}/ds.1 @ONLY)
  execute_process(COMMAND ${DS_GZIP} -9nf ds.1 WORKING_DIRECTORY ${CMAKE_BINARY_DIR}
    COMMAND_ERROR_IS_FATAL ANY)
  install(FILES ${CMAKE_BINARY_DIR}/ds.1.gz COMPONENT program
    DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()

# What packages hold, without examples and tests: `ninja packaged`.
add_custom_target(packaged DEPENDS ds ds_program $<TARGET_NAME_IF_EXISTS:ds_mpi>)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME ds)
set(CPACK_PACKAGE_VENDOR "The ds authors")
set(CPACK_PACKAGE_CONTACT "The ds authors <noreply@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "engine for training language models")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/out)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL ${DS_COMPONENTS})
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/src/capi)

# ds_deb(<component> <section> <depends on our packages> <description>)
macro(ds_deb component section depends description)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${DS_DEB_NAME_${component}})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}")
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${description}")
endmacro()
set(same "${DS_DEB_LIBRARY} (= ${PROJECT_VERSION})")
ds_deb(library libs "" "The shared library with a C interface: mixed precision, gradient accumulation, ZeRO,
 checkpoints, data sets and tokenizers, generation.")
ds_deb(development libdevel "${same}" "What a C or C++ program needs to be compiled with libds: headers, CMake
 package, pkg-config file.")
ds_deb(program science "${same}" "Trains, evaluates, converts and generates from the shell.")
ds_deb(mpi libs "${same}" "Lets ranks meet over Open MPI.")

# What depends on the library: the ABI grows within a minor version before 1.0, later within a major.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  math(EXPR next "${PROJECT_VERSION_MINOR} + 1")
  set(next 0.${next}~)
else()
  math(EXPR next "${PROJECT_VERSION_MAJOR} + 1")
  set(next ${next}~)
endif()
file(WRITE ${CMAKE_BINARY_DIR}/debian/shlibs
  "libds ${DS_ABI_VERSION} ${DS_DEB_LIBRARY} (>= ${PROJECT_VERSION}), ${DS_DEB_LIBRARY} (<< ${next})\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/debian/shlibs)
include(CPack)
