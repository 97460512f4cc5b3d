#!/bin/sh
# Runs a command with a fresh scratch folder as its last argument and removes the folder after.
set -u
folder=$(mktemp -d)
"$@" "$folder"
status=$?
rm -rf "$folder"
exit $status
