# -DDS_SELF_CONTAINED=ON: libds.so holds every library that it needs, hidden, and asks the system for
# libc and libm alone; so does the ds program, which stands on libds.so. For packages that run on any
# system with a C library of this age. Distributions leave it OFF and link what they have.
#
# Debian has static archives of PCRE2, utf8proc and libcrypto. Of Highway and ISA-L it has shared
# libraries only: scripts/static-libraries builds archives of the same versions from its sources.
option(DS_SELF_CONTAINED "Link everything into libds.so but libc and libm" OFF)
set(DS_STATIC_PREFIX ${CMAKE_SOURCE_DIR}/build/static CACHE PATH
  "Where scripts/static-libraries has put its archives")

# ds_static_archive(<variable> <file> <where it comes from>)
function(ds_static_archive variable file source)
  find_file(${variable} ${file} PATHS ${DS_STATIC_PREFIX}/lib NO_DEFAULT_PATH)
  find_file(${variable} ${file} PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} /usr/lib)
  if(NOT ${variable})
    message(FATAL_ERROR "DS_SELF_CONTAINED needs ${file}, which is neither in "
      "${DS_STATIC_PREFIX}/lib nor in the system: ${source}")
  endif()
endfunction()

# After the libraries have been found: their targets keep the include folders and get the archives.
function(ds_link_statically)
  set(ours "scripts/static-libraries builds it")
  ds_static_archive(DS_HWY_ARCHIVE libhwy.a "${ours}")
  ds_static_archive(DS_ISAL_ARCHIVE libisal.a "${ours}")
  ds_static_archive(DS_PCRE2_ARCHIVE libpcre2-8.a "Debian has it in libpcre2-dev")
  ds_static_archive(DS_UTF8PROC_ARCHIVE libutf8proc.a "Debian has it in libutf8proc-dev")
  ds_static_archive(DS_CRYPTO_ARCHIVE libcrypto.a "Debian has it in libssl-dev")
  set_property(TARGET PkgConfig::hwy PROPERTY INTERFACE_LINK_LIBRARIES ${DS_HWY_ARCHIVE})
  set_property(TARGET PkgConfig::pcre2 PROPERTY INTERFACE_LINK_LIBRARIES ${DS_PCRE2_ARCHIVE})
  set_property(TARGET PkgConfig::utf8proc PROPERTY INTERFACE_LINK_LIBRARIES ${DS_UTF8PROC_ARCHIVE})
  set_property(TARGET PkgConfig::crypto PROPERTY INTERFACE_LINK_LIBRARIES ${DS_CRYPTO_ARCHIVE})
  set(DS_ISAL ${DS_ISAL_ARCHIVE} PARENT_SCOPE)
endfunction()

# ds_self_contained(<target>...): C++'s run-time library goes inside too. Exceptions do not cross the
# border of libds.so, so that a program may have another one.
function(ds_self_contained)
  if(NOT DS_SELF_CONTAINED)
    return()
  endif()
  foreach(target IN LISTS ARGN)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections)
  endforeach()
endfunction()
