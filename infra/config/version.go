package config

import "runtime/debug"

// version is set by the linker in releases.
var version string

// Version returns the release, or Go's version of the commit from which the program was built.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		return info.Main.Version
	}
	return version
}
