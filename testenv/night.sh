#!/bin/bash
# What `make night` does: run the long checks one after another, even if one fails, and write one report. PARTS selects the
# parts to run; the report keeps the last result of every other part, with the commit it belongs to.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

: "${SEEDS:=5000}" "${MINUTES:=20}" "${FUZZTIME:=10s}"
: "${FIRST:=$((1001 + $(date -u +%s) / 86400 * SEEDS))}" # each date has its own seeds; CI has 1 to 1000

all=(race sim soak fuzz fuzz-wire tf-apply-check)
declare -A commands=(
	[race]='make race'
	[sim]="make sim FIRST=$FIRST SEEDS=$SEEDS"
	[soak]="make soak MINUTES=$MINUTES"
	[fuzz]="make fuzz FUZZTIME=$FUZZTIME"
	[fuzz-wire]="make fuzz-wire FUZZTIME=$FUZZTIME"
	[tf-apply-check]='make tf-apply-check'
)
dir=.cache/night
read -ra parts <<<"${PARTS:-${all[*]}}"
for part in "${parts[@]}"; do
	[ -n "${commands[$part]:-}" ] || { echo "night: there is no part $part; the parts are: ${all[*]}"; exit 2; }
done
mkdir -p "$dir"
[ -n "${PARTS:-}" ] || rm -f "$dir"/*
commit=$(git describe --always --dirty --exclude '*')

# section PART STATUS TIME writes a part's section of the report.
section() {
	echo "$2" >"$dir/$1.status"
	{
		printf '\n## %s: %s\n\n' "$1" "$2"
		echo "- command: \`${commands[$1]}\`"
		echo "- started: $began, commit $commit; $3"
		echo "- log: \`$dir/$1.log\`"
		if [ "$2" != running ]; then
			printf '\n```\n'
			[ "$2" = passed ] || grep -aE '^ *(=== FAIL|--- FAIL|FAIL)|DATA RACE|^panic: |seed [0-9]+: ' "$dir/$1.log" | head -n 60
			tail -n "$([ "$1" = soak ] && echo 40 || echo 4)" "$dir/$1.log"
			echo '```'
		fi
	} >"$dir/$1.section"
}

# report puts the sections together.
report() {
	local part
	{
		printf '# Night of %s\n\n' "$(date -u +%F)"
		echo "- commit: $commit"
		echo "- machine: $(uname -srm), $(nproc) cores, $(awk '/^MemTotal/ {printf "%.0f", $2 / 1048576}' /proc/meminfo) GiB, $(go env GOVERSION)"
		for part in "${all[@]}"; do
			echo "- $part: $(cat "$dir/$part.status" 2>/dev/null || echo 'not run')"
		done
		for part in "${all[@]}"; do
			cat "$dir/$part.section" 2>/dev/null
		done
	} >"$dir/report.md"
}

failed=()
for i in "${!parts[@]}"; do
	part=${parts[i]} began=$(date -u '+%F %T UTC') start=$SECONDS
	echo "night: $((i + 1)) of ${#parts[@]}, $part: ${commands[$part]}"
	section "$part" running 'not ended yet'
	report
	if ${commands[$part]} --no-print-directory 2>&1 | tee "$dir/$part.log"; then
		status=passed
		if grep -q '^tf-check: skipped' "$dir/$part.log"; then status=skipped; fi
	else
		status=FAILED
		failed+=("$part")
	fi
	took=$((SECONDS - start))
	section "$part" "$status" "took $((took / 60)) min $((took % 60)) s"
	report
	echo "night: $part $status after $((took / 60)) min $((took % 60)) s"
done
echo "night: report in $dir/report.md"
if ((${#failed[@]})); then
	echo "night: FAILED: ${failed[*]}"
	exit 1
fi
