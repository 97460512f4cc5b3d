# What other people's code is inside the binaries, and under which licences: ds_write_third_party(FILE)
# writes both to a text that is installed with them. Each library is named by the Debian package that
# it was built from.
string(REGEX MATCH "^[0-9]+" DS_COMPILER_MAJOR "${CMAKE_CXX_COMPILER_VERSION}")
# name | Debian package | licence | in which binary. First the headers whose code is compiled in, however
# the rest is linked.
set(DS_THIRD_PARTY
  "xxHash|libxxhash-dev|BSD-2-Clause|libds"
  "FlatBuffers|libflatbuffers-dev|Apache-2.0|libds"
  "JSON for Modern C++|nlohmann-json3-dev|MIT|libds and ds"
  "CLI11|libcli11-dev|BSD-3-Clause|ds")
if(DS_SELF_CONTAINED)
  list(APPEND DS_THIRD_PARTY
    "Highway|libhwy-dev|Apache-2.0|libds"
    "ISA-L|libisal-dev|BSD-3-Clause|libds"
    "PCRE2|libpcre2-dev|BSD-3-Clause with an exemption for binary packages|libds"
    "utf8proc|libutf8proc-dev|MIT and Unicode|libds"
    "libcrypto of OpenSSL (SHA-256)|libssl-dev|Apache-2.0|libds"
    "libstdc++ and libgcc|libstdc++-${DS_COMPILER_MAJOR}-dev|GPL-3.0-or-later with the GCC Runtime Library Exception 3.1|libds and ds")
endif()

function(ds_write_third_party file)
  set(head "ds ${PROJECT_VERSION} is licensed under the Apache License 2.0. These libraries are inside:\n\n")
  set(texts "")
  foreach(entry IN LISTS DS_THIRD_PARTY)
    string(REPLACE "|" ";" fields "${entry}")
    list(GET fields 0 name)
    list(GET fields 1 package)
    list(GET fields 2 licence)
    list(GET fields 3 where)
    execute_process(COMMAND dpkg-query -W -f "\${source:Package} \${source:Version}" ${package}
      OUTPUT_VARIABLE source ERROR_QUIET RESULT_VARIABLE unknown)
    set(path /usr/share/doc/${package}/copyright)
    set(text "Licence: ${licence}\n")
    if(NOT unknown EQUAL 0)
      set(source "version not known")
    endif()
    if(EXISTS ${path})
      file(READ ${path} text)
    elseif(DS_SELF_CONTAINED)
      message(FATAL_ERROR "The licence text of ${name} is missing: ${path}, of Debian's package "
        "${package}. A self-contained library must carry it")
    endif()
    string(APPEND head "* ${name} (Debian: ${source}), ${licence}, in ${where}\n")
    string(APPEND texts "\n==== ${name}: ${source}\n\n${text}")
  endforeach()
  file(WRITE ${file} "${head}${texts}")
endfunction()
