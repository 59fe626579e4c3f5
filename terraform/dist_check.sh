#!/bin/bash
# What `make dist-check` does: `make dist` in two copies of the sources, in folders whose names differ in length, must make
# the same bytes. The second build takes nothing from Go's build cache.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'chmod -R u+w "$scratch" && rm -rf "$scratch"' EXIT
for copy in first second-of-two; do
  mkdir "$scratch/$copy"
  git ls-files --cached --others --exclude-standard -z | xargs -0 sh -c 'for f; do [ -e "$f" ] && printf "%s\0" "$f"; done' sh |
    tar --create --null --files-from - | tar --extract --directory "$scratch/$copy"
done

echo 'dist-check: first build'
make -C "$scratch/first" --no-print-directory dist >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
echo "dist-check: second build (${SECONDS}s)"
GOCACHE=$scratch/cache make -C "$scratch/second-of-two" --no-print-directory dist >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
diff "$scratch/first/dist/SHA256SUMS" "$scratch/second-of-two/dist/SHA256SUMS" || { echo 'dist-check: the builds differ'; exit 1; }
echo "dist-check: $(wc -l <"$scratch/first/dist/SHA256SUMS") files are the same bytes (${SECONDS}s)"
