package engine

import (
	"os"
	"path/filepath"
	"strings"

	"reveille/infra/catalog"
	"reveille/infra/recipe"
	"reveille/runner/sandbox"
)

// permissionsOf returns what the engine of a spec is allowed to do. env is its environment, dir its private folder.
func permissionsOf(s Spec, argv, env []string, dir string) sandbox.Permissions {
	needs := s.Recipe.Sandbox
	perms := sandbox.Permissions{
		Program: argv[0], Dir: dir, Pids: needs.Pids,
		OpenFiles: needs.Files == recipe.SandboxOpen, OpenNet: needs.Network == recipe.SandboxOpen,
		Read: append(modelFiles(s.Checkpoint), modelFiles(s.MMProj)...), Write: expandHome(needs.Write),
	}
	perms.Read = append(perms.Read, expandHome(needs.Read)...)
	perms.Exec = expandHome(needs.Exec)
	perms.Read = append(perms.Read, argumentFiles(s)...)
	if !s.onSocket() {
		perms.Port = s.Port
	}
	for _, kv := range env {
		if list, ok := strings.CutPrefix(kv, "LD_LIBRARY_PATH="); ok {
			for _, lib := range filepath.SplitList(list) {
				if filepath.IsAbs(lib) {
					perms.Libraries = append(perms.Libraries, lib)
				}
			}
		}
	}
	for _, path := range s.Env { // the encoder cache's library and socket
		info, err := os.Stat(path)
		switch {
		case err != nil || !filepath.IsAbs(path):
		case info.Mode()&os.ModeSocket != 0:
			perms.Sockets = append(perms.Sockets, path)
		case info.Mode().IsRegular():
			perms.Read = append(perms.Read, path)
		}
	}
	return perms
}

// argumentFiles returns the files that the extra arguments name, such as the other parts of an image model. Only the
// machine's owner sets these arguments.
func argumentFiles(s Spec) (files []string) {
	args, _ := s.Recipe.ExtraArgs(s.Options) // checked when the options were read
	for _, arg := range args {
		if _, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(arg, "-") {
			arg = value
		}
		if info, err := os.Stat(arg); err == nil && filepath.IsAbs(arg) && info.Mode().IsRegular() {
			files = append(files, arg)
		}
	}
	return files
}

// modelFiles returns the files of a checkpoint: all parts of a split GGUF file, or a folder and the files in the folder
// "blobs" of the Hugging Face cache that its links point to. It returns none if there is no such file.
func modelFiles(path string) []string {
	if !filepath.IsAbs(path) {
		abs, err := filepath.Abs(path)
		if err != nil || path == "" {
			return nil
		}
		path = abs
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	if info.IsDir() {
		out := []string{path}
		blobs := filepath.Join(filepath.Dir(filepath.Dir(path)), "blobs")
		entries, _ := os.ReadDir(path)
		for _, e := range entries {
			if target, err := filepath.EvalSymlinks(filepath.Join(path, e.Name())); err == nil && filepath.Dir(target) == blobs {
				out = append(out, target)
			}
		}
		return out
	}
	return catalog.Shards(path)
}

// expandHome replaces "~/" by the runner's home folder. Without one it leaves such paths out.
func expandHome(paths []string) []string {
	home, err := os.UserHomeDir()
	var out []string
	for _, p := range paths {
		rest, ok := strings.CutPrefix(p, "~/")
		switch {
		case !ok:
			out = append(out, p)
		case err == nil:
			out = append(out, filepath.Join(home, rest))
		}
	}
	return out
}
