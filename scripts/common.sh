# Shared by the scripts: the checkout's root and how much to do at once. Sourced, not run.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Parallel compilations: the CPUs this process may use, but one per 1.5 GiB of memory.
build_jobs() {
  local cpus memory jobs
  cpus=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1572864)}' /proc/meminfo)
  jobs=$((cpus < memory ? cpus : memory))
  echo $((jobs > 1 ? jobs : 1))
}

# Whether a preset is configured, and neither presets nor packages have changed since. The build
# itself looks at the rest of what it was configured from.
is_configured() {
  local made=$root/build/$1/build.ninja
  [ "$made" -nt "$root/CMakePresets.json" ] && [ "$made" -nt /var/lib/dpkg/status ]
}

# configure_and_build PRESET [TARGET...]
configure_and_build() {
  local preset=$1
  shift
  (
    cd "$root" || exit
    is_configured "$preset" ||
      cmake --preset "$preset" >"$root/build/configure-$preset.log" 2>&1 ||
      {
        cat "$root/build/configure-$preset.log" >&2
        exit 1
      }
    cmake --build --preset "$preset" -j "$(build_jobs)" ${1:+--target "$@"}
  )
}
