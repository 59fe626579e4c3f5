package engine

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"reveille/infra/recipe"
)

// A Finder finds engine programs. The zero value searches the folder of the running program and PATH.
type Finder struct {
	// Paths maps a recipe, or recipe:backend for one of its backends ("llamacpp:cuda"), to the program to use.
	Paths map[string]string
	// Dirs are folders searched before the folder of the running program.
	Dirs []string
	// Self is the path of the running program; os.Executable when empty.
	Self string
}

// Find returns the absolute path of the program of a recipe. It uses, in this order, the configured path, the recipe's
// command if that is a path, and a file of the command's name in Dirs, in the folder of the running program and in
// PATH. A configured path that is not a program is an error and does not continue the search. Errors wrap
// [ErrNoProgram].
func (f Finder) Find(r *recipe.Recipe, backend string) (string, error) {
	for _, key := range []string{r.Name + ":" + backend, r.Name} {
		if p := f.Paths[key]; p != "" {
			return program(p)
		}
	}
	name := r.Program()
	if name == "" {
		return "", fmt.Errorf("%w: recipe %s has no command", ErrNoProgram, r.Name)
	}
	if strings.ContainsRune(name, filepath.Separator) {
		return program(name)
	}
	self := f.Self
	if self == "" {
		self, _ = os.Executable()
	}
	dirs := f.Dirs
	if self != "" {
		dirs = append(dirs[:len(dirs):len(dirs)], filepath.Dir(self))
	}
	for _, dir := range dirs {
		if p, err := program(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	if p, err := exec.LookPath(name); err == nil {
		return program(p)
	}
	return "", fmt.Errorf("%w: %s (recipe %s) is not in --engines-dir, in the folder of this program or in PATH; install it, or set --engines-dir to its folder", ErrNoProgram, name, r.Name)
}

// program checks that path is an executable file and returns it absolute.
func program(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%w: %s", ErrNoProgram, path)
	}
	info, err := os.Stat(abs)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("%w: %s is not an executable file", ErrNoProgram, path)
	}
	return abs, nil
}

// libraryPath returns the LD_LIBRARY_PATH for a program: its folder, if that has shared libraries, followed by the
// current one.
func libraryPath(program, current string) string {
	dir := filepath.Dir(program)
	libs, err := fs.Glob(os.DirFS(dir), "lib*.so*")
	switch {
	case err != nil || len(libs) == 0:
		return current
	case current == "":
		return dir
	}
	return dir + string(os.PathListSeparator) + current
}
