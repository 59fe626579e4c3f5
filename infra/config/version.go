package config

import "runtime/debug"

// version is set by the linker in releases.
var version string

// Version is the release, or the commit that the program was built from, with "+changes" where files were changed, or "dev"
// where the build does not tell.
func Version() string {
	if version != "" {
		return version
	}
	commit, changed := "dev", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && s.Value != "":
				commit = s.Value[:min(len(s.Value), 12)]
			case s.Key == "vcs.modified" && s.Value == "true":
				changed = "+changes"
			}
		}
	}
	return commit + changed
}
