#!/bin/sh
# Installs into a scratch folder, moves the installation, and builds and runs a client against it
# with find_package, with pkg-config, and with plain compiler options.
# Usage: install_test.sh CMAKE BUILD_FOLDER C_COMPILER VERSION SCRATCH
set -eu
cmake=$1 build=$2 cc=$3 version=$4 scratch=$5
here=$(cd "$(dirname "$0")" && pwd)

fail() {
  echo "install test: $*" >&2
  exit 1
}

"$cmake" --install "$build" --prefix "$scratch/first" >"$scratch/log" || fail "$(cat "$scratch/log")"
mv "$scratch/first" "$scratch/moved"
prefix=$scratch/moved
for file in include/ds.h include/ds.hpp bin/ds; do
  [ -e "$prefix/$file" ] || fail "$file is not installed"
done
lib=$(dirname "$(find "$prefix" -name libds.so)")
[ -n "$lib" ] || fail "libds.so is not installed"
if grep -R -l -F "$scratch/first" "$prefix" | grep -v '\.so'; then
  fail "the files above name the folder of the installation"
fi

"$prefix/bin/ds" --version >"$scratch/log" 2>&1 || fail "bin/ds does not run: $(cat "$scratch/log")"

expect() {
  got=$("$@") || fail "$* failed"
  [ "$got" = "ds $version" ] || fail "$* said '$got'"
}

"$cmake" -S "$here" -B "$scratch/find_package" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_C_COMPILER="$cc" >"$scratch/log" 2>&1 || fail "$(cat "$scratch/log")"
"$cmake" --build "$scratch/find_package" >"$scratch/log" 2>&1 || fail "$(cat "$scratch/log")"
expect "$scratch/find_package/client"

if command -v pkg-config >/dev/null; then
  PKG_CONFIG_PATH=$lib/pkgconfig
  export PKG_CONFIG_PATH
  [ "$(pkg-config --modversion ds)" = "$version" ] || fail "pkg-config has another version"
  # shellcheck disable=SC2046
  "$cc" -std=c99 "$here/client.c" $(pkg-config --cflags --libs ds) -o "$scratch/with_pkg_config"
  LD_LIBRARY_PATH=$lib
  export LD_LIBRARY_PATH
  expect "$scratch/with_pkg_config"
else
  echo "install test: pkg-config is not installed, that part is left out"
fi
"$cc" -std=c99 -I"$prefix/include" "$here/client.c" -L"$lib" -lds -o "$scratch/by_hand"
expect env LD_LIBRARY_PATH="$lib" "$scratch/by_hand"
