package config

import "runtime/debug"

// version is set by the linker in releases.
var version string

// Version is the release, or what Go says of the commit that the program was built from.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		return info.Main.Version
	}
	return version
}
