package sandbox

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
)

// interpreter returns the program that the kernel starts for a script, or "" for other programs.
func interpreter(program string) string {
	f, err := os.Open(program)
	if err != nil {
		return ""
	}
	defer f.Close()
	line, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n') // the kernel reads no more
	text, ok := strings.CutPrefix(string(line), "#!")
	if fields := strings.Fields(text); ok && len(fields) > 0 && filepath.IsAbs(fields[0]) {
		return fields[0]
	}
	return ""
}

// environment returns the folder of the Python environment that an interpreter belongs to, or "". Its packages, some
// with programs and libraries, are in that folder, and the interpreter in it is a link to that of another one.
func environment(interpreter string) string {
	root := filepath.Dir(filepath.Dir(interpreter))
	if info, err := os.Stat(filepath.Join(root, "pyvenv.cfg")); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return root
}
