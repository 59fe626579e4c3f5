// Package filestate identifies files by their state in the file system, and finds the files that an engine consists of.
package filestate

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// State is a file's state in the file system. Every write and every replacement changes it, unless the file was written
// less than clockTick before the state was read.
type State struct {
	Dev, Inode         uint64
	Size, MTime, CTime int64 // MTime and CTime in ns
}

// clockTick is longer than the resolution of a file system's times.
const clockTick = 50 * time.Millisecond

// Settled returns the state of a regular file. If the file was written just now, it first waits until a later write
// would change the state.
func Settled(path string) (State, error) {
	for again := false; ; again = true {
		info, err := os.Stat(path)
		if err != nil {
			return State{}, err
		}
		if !info.Mode().IsRegular() {
			return State{}, fmt.Errorf("%s is not a regular file", path)
		}
		s, err := Of(info)
		if err != nil {
			return State{}, err
		}
		age := time.Since(time.Unix(0, s.CTime))
		if again || age < 0 || age >= clockTick {
			return s, nil
		}
		time.Sleep(clockTick)
	}
}

// Is reports whether the file at path is still in state s.
func (s State) Is(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	now, err := Of(info)
	return err == nil && now == s
}

// Libraries lists the libraries of llama.cpp that a program with environment env (NAME=value) loads: those in the first
// folder that contains its libmtmd, or none for a statically linked program.
func Libraries(program string, env []string) []string {
	dir := filepath.Dir(program)
	dirs := []string{dir}
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "LD_LIBRARY_PATH="); ok {
			dirs = append(dirs, filepath.SplitList(v)...)
		}
	}
	for _, lib := range []string{"lib", "lib64"} {
		dirs = append(dirs, filepath.Join(dir, "..", lib), filepath.Join("/usr/local", lib), filepath.Join("/usr", lib))
	}
	triplets, _ := filepath.Glob("/usr/lib/*-linux-gnu")
	for _, d := range append(dirs, triplets...) {
		entries, err := os.ReadDir(d)
		if err != nil || !slices.ContainsFunc(entries, func(f os.DirEntry) bool { return strings.HasPrefix(f.Name(), "libmtmd.so") }) {
			continue
		}
		var out []string
		for _, f := range entries {
			if !libraryName.MatchString(f.Name()) {
				continue
			}
			if real, err := filepath.EvalSymlinks(filepath.Join(d, f.Name())); err == nil {
				out = append(out, real)
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	return nil
}

var libraryName = regexp.MustCompile(`^lib(mtmd|llama|ggml)[a-z0-9_-]*\.so(\.[0-9.]+)?$`)
