// Command image writes the OCI images of gateway (with warmer) and runner from the programs that `make dist` built, as archives of
// an OCI image layout. It needs no container engine and no registry, and equal inputs make equal bytes.
package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"reveille/infra/config"
)

type settings struct {
	Dist    string   `help:"Folder with the programs, which the archives are written to." default:"dist"`
	Arch    []string `help:"Architectures." default:"arm64,amd64"`
	Version string   `help:"Version, the images' tag." default:"dev"`
	Base    string   `help:"Folder with an OCI image layout that the runner's image is built on, such as one with an engine; default none."`
}

// images are what is built.
var images = []image{
	{
		name: "gateway", programs: []string{"gateway", "warmer"},
		config: v1.Config{
			Cmd:          []string{"serve"},
			Env:          []string{"REVEILLE_ADDR=0.0.0.0:8080"},
			ExposedPorts: map[string]struct{}{"8080/tcp": {}},
			Healthcheck:  &v1.HealthConfig{Test: []string{"CMD", binDir + "gateway", "health"}}, // Docker reads it; OCI has none
		},
	},
	{
		name: "runner", programs: []string{"runner"}, engines: true,
		config: v1.Config{
			Env:          []string{"REVEILLE_ENGINES_DIR=/opt/reveille/engines,/app", "REVEILLE_STATE_DIR=" + stateDir},
			ExposedPorts: map[string]struct{}{"8090/tcp": {}},
			WorkingDir:   stateDir,
			Volumes:      map[string]struct{}{stateDir: {}},
		},
	},
}

func main() {
	var s settings
	config.MustParse(&s, "image", "Writes OCI images.")
	for _, i := range images {
		file, err := i.write(s)
		if err != nil {
			fmt.Fprintf(os.Stderr, "image: %s: %v\n", i.name, err)
			os.Exit(1)
		}
		fmt.Println(file)
	}
}

// image is one image for every architecture.
type image struct {
	name     string
	programs []string // the first is what the image runs
	engines  bool     // runs engines: may have a base, keeps state, has the encoder cache's library
	config   v1.Config
}

// write writes the image's archive and returns its name.
func (i image) write(s settings) (string, error) {
	var index v1.ImageIndex = empty.Index
	for _, arch := range s.Arch {
		img, err := i.forArch(s, arch)
		if err != nil {
			return "", fmt.Errorf("linux/%s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return "", err
	}
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          "reveille/" + i.name + ":" + s.Version,
		"org.opencontainers.image.ref.name": s.Version,
	}))
	if err != nil {
		return "", err
	}
	file := filepath.Join(s.Dist, i.name+"_oci.tar")
	return file, pack(dir, file)
}

// forArch is the image of one architecture.
func (i image) forArch(s settings, arch string) (v1.Image, error) {
	base, onBase, err := i.base(s, arch)
	if err != nil {
		return nil, err
	}
	files := i.files(s.Dist, arch, onBase)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return stream(files), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: "reveille"}})
	if err != nil {
		return nil, err
	}
	old, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file := old.DeepCopy()
	file.OS, file.Architecture, file.Author = "linux", arch, ""
	env := file.Config.Env
	if !onBase {
		env = []string{"PATH=" + strings.TrimSuffix(binDir, "/")}
	}
	file.Config = *i.config.DeepCopy()
	file.Config.Env = append(env, i.config.Env...)
	file.Config.User = fmt.Sprintf("%d:%d", user, user)
	file.Config.Entrypoint = []string{binDir + i.programs[0]}
	file.Config.Labels = map[string]string{"org.opencontainers.image.title": "reveille-" + i.name, "org.opencontainers.image.version": s.Version}
	return mutate.ConfigFile(img, file)
}

// base is what the image is built on: nothing, or the image of its architecture in the layout s.Base.
func (i image) base(s settings, arch string) (img v1.Image, found bool, err error) {
	if !i.engines || s.Base == "" {
		img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
		return mutate.ConfigMediaType(img, types.OCIConfigJSON), false, nil
	}
	index, err := layout.ImageIndexFromPath(s.Base)
	if err != nil {
		return nil, false, err
	}
	img, err = find(index, arch)
	return img, true, err
}

// find is the image of linux/arch in an index or in one of its indexes.
func find(index v1.ImageIndex, arch string) (v1.Image, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range manifest.Manifests {
		switch {
		case d.MediaType.IsIndex():
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			if img, err := find(inner, arch); err == nil {
				return img, nil
			}
		case d.MediaType.IsImage():
			img, err := index.Image(d.Digest)
			if err != nil {
				return nil, err
			}
			file, err := img.ConfigFile()
			if err != nil {
				return nil, err
			}
			if file.OS == "linux" && file.Architecture == arch {
				return img, nil
			}
		}
	}
	return nil, errors.New("the base has no image for it")
}

// pack writes the files of a folder as an archive.
func pack(dir, file string) (err error) {
	out, err := os.Create(file + ".new")
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return put(w, entry{name: name, mode: 0o644, from: path})
	})
	if err := errors.Join(err, w.Close(), out.Close()); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
