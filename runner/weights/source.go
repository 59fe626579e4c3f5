package weights

import (
	"context"
	"io"

	"reveille/infra/catalog"
)

// A Location is where weights come from.
type Location struct {
	catalog.Checkpoint
	SHA256 string // of its one file, in lower-case hex; "" leaves it to what the source says
}

// A Source finds weights at locations of one scheme. Its methods and those of its files are safe for concurrent use; their
// errors are [*Error], with no location in them, or count as [ErrFetch]. Errors hold no secrets.
type Source interface {
	// Stat describes the one file of that name. ErrNotFound: there is none; there may be a folder.
	Stat(ctx context.Context, at catalog.Checkpoint) (File, error)
	// List describes all files below a folder of that name, in order of their names. A whole repository is the folder
	// with the name "".
	List(ctx context.Context, at catalog.Checkpoint) ([]File, error)
}

// A File is a source's description of one file.
type File struct {
	Name   string // below its folder, with slashes
	Size   int64
	Digest Digest // zero: the source says nothing that can be relied on
	// Open reads n bytes, 1 or more, from an offset on. The reader may end early.
	Open func(ctx context.Context, from, n int64) (io.ReadCloser, error)
}
