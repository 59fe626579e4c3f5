#!/bin/bash
# What `make tf-check` does. `check.sh --no-apply` applies no more than examples/minimal on the emulator.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v terraform >/dev/null; then
  echo 'tf-check: skipped, terraform is not installed'
  exit
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TF_DATA_DIR=$scratch/data CHECKPOINT_DISABLE=1 TF_IN_AUTOMATION=1

# Where providers come from: a folder of this machine laid out as a mirror, if there is one with the version that is
# locked, or else the registry.
version=$(awk '$1 == "version" { gsub(/"/, "", $3); print $3; exit }' .terraform.lock.hcl)
found=$({ find "$HOME" /opt /usr/local /usr/share /var/lib -maxdepth 9 -type d \
  -path "*/registry.terraform.io/hashicorp/aws/$version/*_*" -not -path '*/.terraform/*' -print -quit 2>/dev/null || true; } | head -n 1)
{
  echo 'disable_checkpoint = true'
  if [ -n "$found" ]; then
    echo "provider_installation {"
    echo "  filesystem_mirror {"
    echo "    path    = \"${found%/registry.terraform.io/*}\""
    echo '    include = ["registry.terraform.io/hashicorp/aws"]'
    echo '  }'
    echo '}'
  fi
} >"$scratch/terraform.rc"
export TF_CLI_CONFIG_FILE=$scratch/terraform.rc

step() { echo "tf-check: $1 (${SECONDS}s)"; }

step 'format'
terraform fmt -check -diff -recursive
step 'providers'
terraform init -backend=false -input=false -lockfile=readonly >"$scratch/init" 2>&1 || {
  cat "$scratch/init"
  if [ -z "$found" ] && grep -qE 'could not connect to|Failed to query available provider|failed to request|no such host' "$scratch/init"; then
    echo 'tf-check: skipped, the AWS provider is in no mirror on this machine and its registry cannot be reached'
    exit
  fi
  exit 1
}
step 'validity'
terraform validate
if command -v tflint >/dev/null; then
  step 'tflint'
  tflint --recursive --config "$PWD/.tflint.hcl"
else
  step 'tflint is not installed and was left out'
fi
if command -v checkov >/dev/null; then
  step 'checkov'
  checkov --directory . --config-file .checkov.yaml
else
  step 'checkov is not installed and was left out'
fi
step 'unit tests'
terraform test -no-color >"$scratch/test" 2>&1 || { cat "$scratch/test"; exit 1; }
tail -n 1 "$scratch/test"
step 'variables, README, calls'
(cd .. && go test ./testenv/stack -count 1 -run '^(TestReadmeTables|TestWrongValues|TestCalls)$')
if [ "${1:-}" = --no-apply ]; then
  step 'the minimal example on the emulator'
  (cd .. && go test ./testenv/stack -count 1 -timeout 20m -run '^TestMinimal$' -minimal)
else
  step 'the stack on the emulator'
  (cd .. && go test ./testenv/stack -count 1 -timeout 60m -run '^(TestGiven|TestMinimal|TestStack)$' -stack -v | grep --line-buffered -vE '^(=== |testing:)')
fi
step 'done'
