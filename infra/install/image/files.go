package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	user     = 65532 // who programs run as, and what distroless images call nonroot
	binDir   = "/usr/local/bin/"
	stateDir = "/var/lib/reveille"
)

// entry is a file of a layer, or a folder if its name ends with a slash.
type entry struct {
	name  string
	mode  int64
	owner int
	from  string // the file with its content, or
	text  string // its content
}

// files are those of the image's layer. On a base, accounts and /tmp are the base's.
func (i image) files(dist, arch string, onBase bool) []entry {
	all := []entry{
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, text: roots()},
	}
	if !onBase {
		all = append(all,
			entry{name: "etc/passwd", mode: 0o644, text: "root:x:0:0:root:/:/sbin/nologin\nreveille:x:65532:65532:reveille:/:/sbin/nologin\n"},
			entry{name: "etc/group", mode: 0o644, text: "root:x:0:\nreveille:x:65532:\n"},
			entry{name: "tmp/", mode: 0o1777},
		)
	}
	for _, program := range i.programs {
		all = append(all, entry{name: strings.TrimPrefix(binDir, "/") + program, mode: 0o755, from: filepath.Join(dist, program+"_linux_"+arch)})
	}
	if i.engines {
		all = append(all, entry{name: strings.TrimPrefix(stateDir, "/") + "/", mode: 0o750, owner: user})
		library := "libreveille_mm_linux_" + arch + ".so"
		if from := filepath.Join(dist, library); exists(from) {
			all = append(all, entry{name: strings.TrimPrefix(binDir, "/") + library, mode: 0o755, from: from})
		}
	}
	return all
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// roots are Mozilla's certificate authorities, of the module's pinned version.
func roots() string {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil { // a PEM file cannot say the constraint
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a Buffer takes all
		}
	}
	return b.String()
}

// stream is the uncompressed layer. Folders that are not listed are left to whoever unpacks it.
func stream(files []entry) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		for _, f := range files {
			if err := put(t, f); err != nil {
				_ = w.CloseWithError(err) // always nil
				return
			}
		}
		_ = w.CloseWithError(t.Close())
	}()
	return r
}

// put writes an entry with a fixed time.
func put(w *tar.Writer, e entry) error {
	h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR, ModTime: time.Unix(0, 0)}
	if strings.HasSuffix(e.name, "/") {
		h.Typeflag = tar.TypeDir
		return w.WriteHeader(h)
	}
	if e.from == "" {
		h.Size = int64(len(e.text))
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.WriteString(w, e.text)
		return err
	}
	in, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	h.Size = info.Size()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}
