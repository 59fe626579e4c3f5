#!/bin/bash
# What `make image` does with dist: image.sh DIST VERSION BASE ARCH... builds the images of gateway and runner with buildah and
# writes them to dist as archives of an OCI image layout. BASE is what the runner's image is built on. Equal inputs and a base of
# scratch make equal bytes: nothing runs, nothing is fetched, and times are 0.
set -euo pipefail
dist=$(realpath "$1") version=$2 base=$3
shift 3
cd "$(dirname "$0")"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
images() { buildah --storage-driver vfs --root "$scratch/root" --runroot "$scratch/run" "$@"; }

context=$scratch/context
mkdir -p "$context"/{state,tmp}
chmod 0750 "$context/state"
chmod 1777 "$context/tmp"
install -m 0644 "${CA_CERTIFICATES:-/etc/ssl/certs/ca-certificates.crt}" "$context/ca-certificates.crt"
platforms=()
for arch; do
  platforms+=(--platform "linux/$arch")
  mkdir -p "$context/$arch"/{gateway,runner}
  for program in gateway warmer; do install -m 0755 "$dist/${program}_linux_$arch" "$context/$arch/gateway/$program"; done
  install -m 0755 "$dist/runner_linux_$arch" "$context/$arch/runner/runner"
  library=$dist/libreveille_mm_linux_$arch.so
  if [ -e "$library" ]; then install -m 0755 "$library" "$context/$arch/runner/"; fi
done
for image in gateway runner; do
  images bud --quiet --isolation chroot --timestamp 0 --manifest "$image" "${platforms[@]}" --build-arg "BASE=$base" \
    --label "org.opencontainers.image.title=reveille-$image" --label "org.opencontainers.image.version=$version" \
    --file "$image.Dockerfile" "$context" >/dev/null
  images manifest push --quiet --all "$image" "oci:$scratch/$image:$version" >/dev/null
  tar --create --directory "$scratch/$image" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=ustar \
    --file "$dist/${image}_oci.tar" .
  echo "$dist/${image}_oci.tar"
done
