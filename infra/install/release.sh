#!/bin/bash
# What `make release` does with dist: release.sh DIST VERSION SBOM-TOOL ARCH... writes an archive for each architecture, with the
# programs, their bills of materials, and what installs them. Equal inputs make equal bytes.
set -euo pipefail
dist=$(realpath "$1") version=$2 tool=$3
shift 3
cd "$(dirname "$0")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch"/share/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
completion() { go run ./gateway completion "$1"; }
completion bash >"$scratch/share/bash-completion/completions/gateway"
completion zsh >"$scratch/share/zsh/site-functions/_gateway"
completion fish >"$scratch/share/fish/vendor_completions.d/gateway.fish"
for arch; do
  name=reveille_${version}_linux_$arch
  root=$scratch/$name
  mkdir -p "$root/bin" "$root/sbom"
  for program in gateway runner warmer; do
    cp "$dist/${program}_linux_$arch" "$root/bin/$program"
    # -trimpath: the bill has the tool's digest
    go run -trimpath "$tool" bin -json -noserial -notimestamp -version "$version" -output "$root/sbom/$program.cdx.json" "$root/bin/$program" 2>"$scratch/log" ||
      { cat "$scratch/log"; exit 1; }
  done
  library=$dist/libreveille_mm_linux_$arch.so
  if [ -e "$library" ]; then cp "$library" "$root/bin"; fi
  cp -r "$scratch/share" "$root"
  cp -r infra/install/{chart,compose.yaml,compose.nas.yaml,grafana,prometheus,systemd} "$root"
  cp infra/install/archive.md "$root/README.md"
  chmod -R u=rwX,go=rX "$root"
  tar --create --directory "$scratch" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=ustar "$name" | gzip -9n >"$dist/$name.tar.gz"
  echo "$dist/$name.tar.gz"
done
