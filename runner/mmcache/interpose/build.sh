#!/bin/sh
# Builds the library into OUT. CC is the compiler, cc by default; one for another architecture builds for that, such as
# aarch64-linux-gnu-gcc, or with the package ziglang from PyPI: python3 -m ziglang cc -target aarch64-linux-gnu.2.31.
# Equal compilers write equal bytes.
#
# usage: build.sh OUT
set -eu
LC_ALL=C
export LC_ALL
# shellcheck disable=SC2086 # CC may have arguments
exec ${CC:-cc} -std=c11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -shared -pthread \
	-Wl,--build-id=none -s -o "$1" "$(dirname "$0")"/*.c -ldl
