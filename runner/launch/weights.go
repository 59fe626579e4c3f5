package launch

import (
	"context"
	"errors"

	"reveille/infra/catalog"
	"reveille/infra/rpc"
	"reveille/runner/host"
	"reveille/runner/weights"
)

var _ host.Weights = (*Launcher)(nil)

// locationsOf returns the locations of a model's weights that must be fetched. It leaves out files named by a host
// path.
func locationsOf(m *catalog.Model) []weights.Location {
	var out []weights.Location
	for _, at := range []weights.Location{{Checkpoint: catalog.ParseCheckpoint(m.Checkpoint), SHA256: m.SHA256}, {Checkpoint: catalog.ParseCheckpoint(m.MMProj)}} {
		if at.Scheme != catalog.SchemePath {
			out = append(out, at)
		}
	}
	return out
}

// HasFiles reports whether nothing of a model needs to be fetched. Files with a path of this host are not checked.
func (l *Launcher) HasFiles(m *catalog.Model) bool {
	for _, at := range locationsOf(m) {
		if !l.Weights.Has(at) {
			return false
		}
	}
	return true
}

// Pull fetches the files of a model. Errors are [*host.Error], or the error of ctx.
func (l *Launcher) Pull(ctx context.Context, m *catalog.Model) error {
	return pullError(l.Weights.Pull(ctx, locationsOf(m)...))
}

// Progress returns how many bytes of a model's files have been fetched, and how many there are in total.
func (l *Launcher) Progress(m *catalog.Model) (done, total int64) {
	return l.Weights.Progress(locationsOf(m)...)
}

// pullError turns an error of weights into one for clients. It is final, because evicting other models would not help.
func pullError(err error) error {
	var e *weights.Error
	if !errors.As(err, &e) {
		return err
	}
	out := &host.Error{Code: rpc.CodeModelLoadError, Message: "weights " + e.Message(), Final: true, Cause: e.Cause}
	switch e.Kind {
	case weights.ErrNotFound:
		out.Code = "model_file_not_found"
	case weights.ErrFull:
		out.Code = "disk_full"
	}
	return out
}

// files are a model's files on this host, protected from removal until release.
type files struct {
	checkpoint, mmproj string
	holds              []*weights.Hold
}

// hold returns a model's files, and fetches those that were removed since they were pulled.
func (l *Launcher) hold(ctx context.Context, m *catalog.Model) (*files, error) {
	f := &files{}
	for _, one := range []struct {
		path      *string
		from, sum string
	}{{&f.checkpoint, m.Checkpoint, m.SHA256}, {&f.mmproj, m.MMProj, ""}} {
		at := weights.Location{Checkpoint: catalog.ParseCheckpoint(one.from), SHA256: one.sum}
		if at.Scheme == catalog.SchemePath {
			if m.Registered && at.Path != "" && !catalog.Below(at.Path, m.Within) {
				f.release()
				return nil, &host.Error{Code: rpc.CodeModelFileNotFound, Message: "model file is not in a folder that registered models can use on this host", Final: true}
			}
			*one.path = catalog.Shards(at.Path)[0]
			continue
		}
		h, err := l.Weights.Hold(ctx, at)
		if err != nil {
			f.release()
			return nil, pullError(err)
		}
		*one.path, f.holds = catalog.Shards(h.Path)[0], append(f.holds, h)
	}
	return f, nil
}

func (f *files) release() {
	for _, h := range f.holds {
		h.Release()
	}
}

// path returns the path of a file on this host, of its first part if it is split, or "" for weights that have not been
// fetched.
func (l *Launcher) path(checkpoint, sha256 string) string {
	at := weights.Location{Checkpoint: catalog.ParseCheckpoint(checkpoint), SHA256: sha256}
	if at.Scheme == catalog.SchemePath {
		return catalog.Shards(at.Path)[0]
	}
	if l.Weights == nil {
		return ""
	}
	path, _ := l.Weights.Path(at)
	return catalog.Shards(path)[0]
}
