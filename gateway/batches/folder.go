package batches

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"reveille/gateway/api"
	"reveille/gateway/web"
)

const (
	filePrefix   = "file-"
	batchPrefix  = "batch_"
	uploadPrefix = "upload-"
	tempPrefix   = "." // of renameio's files
	record       = ".json"
	stopMark     = ".stop"
)

// newID returns a new id: the prefix, the time, and random characters.
func newID(prefix string, now time.Time) string {
	return fmt.Sprintf("%s%011x%s", prefix, now.UnixMilli(), strings.ToLower(rand.Text()[:21]))
}

var idForm = regexp.MustCompile(`^(file-|batch_)[0-9a-z]{32}$`)

// isID reports whether a text has the form of an id that newID returns. No other text becomes part of a path.
func isID(prefix, text string) bool {
	return strings.HasPrefix(text, prefix) && idForm.MatchString(text)
}

func (s *Service) path(tenant, name string) string { return filepath.Join(s.cfg.Dir, tenant, name) }

// read reads a record. The error is fs.ErrNotExist if there is none.
func (s *Service) read(tenant, id string, into any) error {
	text, err := os.ReadFile(s.path(tenant, id+record))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("record %s of the batch folder: %w", id, err)
	}
	return nil
}

// write replaces a record.
func (s *Service) write(tenant, id string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return renameio.WriteFile(s.path(tenant, id+record), text, 0o600)
}

// ids returns the ids of a key's records, the oldest first.
func (s *Service) ids(tenant, prefix string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.cfg.Dir, tenant)) // by name
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), record); ok && isID(prefix, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// tenants returns the names of all keys that have a folder.
func (s *Service) tenants() ([]string, error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

const (
	countEvery     = time.Minute      // how often a gateway counts the bytes of the folder: others write there, too
	countFullEvery = 10 * time.Second // the same while it is full
)

// reserve counts n bytes that will be written to the folder. The error is api.DiskFull if it has no room for them, or
// for a single byte.
func (s *Service) reserve(n int) error {
	s.size.Lock()
	defer s.size.Unlock()
	full := func() bool { return s.used+int64(max(n, 1)) > s.cfg.MaxBytes }
	if age := time.Since(s.counted); age > countEvery || age > countFullEvery && full() {
		used, err := s.countBytes()
		if err != nil {
			return err
		}
		s.used, s.counted = used, time.Now()
	}
	if full() {
		return api.New(api.DiskFull, "The gateway's folder of files is full (--batch-bytes).")
	}
	s.used += int64(n)
	return nil
}

// remove removes a file of the folder, if it is there.
func (s *Service) remove(path string) error {
	info, err := os.Stat(path)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return ignoreMissing(err)
	}
	if filepath.Ext(path) == "" { // records are small, and count only when all is counted
		s.release(info.Size())
	}
	return nil
}

// release undoes reserve for bytes that were not written, or were removed.
func (s *Service) release(n int64) {
	s.size.Lock()
	defer s.size.Unlock()
	s.used -= n
}

// isFull reports whether a write failed because the folder or its disk is full.
func isFull(err error) bool {
	return errors.Is(err, api.DiskFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// folderError is the error for a folder that cannot be written.
func folderError(err error) error {
	if isFull(err) {
		return api.New(api.DiskFull, "The gateway's folder of files is full.").WithCause(err)
	}
	return err
}

// countBytes returns the bytes of all files of the folder.
func (s *Service) countBytes() (total int64, err error) {
	err = filepath.WalkDir(s.cfg.Dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return ignoreMissing(err)
		}
		info, err := e.Info()
		if err == nil {
			total += info.Size()
		}
		return ignoreMissing(err)
	})
	return total, err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
		return nil
	}
	return err
}

// listing is how a list is read.
type listing struct {
	prefix          string // of ids
	before          string // text that clients see before ids
	after           string // the query's parameter for the last id that the client has
	limit, maxLimit int
}

// page responds with the objects that follow the last one that the client has, at most the query's limit. read returns
// nil for objects that are left out.
func (s *Service) page(r *web.Request, l listing, read func(tenant, id string) (any, error)) error {
	tenant := s.cfg.Tenant(&r.Key)
	ids, err := s.ids(tenant, l.prefix)
	if err != nil {
		return err
	}
	switch r.Query("order") {
	case "asc":
	case "", "desc":
		slices.Reverse(ids)
	default:
		return api.New(api.InvalidType, "'order' must be asc or desc.").WithParam("order")
	}
	limit, err := r.QueryLimit(l.limit, l.maxLimit)
	if err != nil {
		return err
	}
	if after := r.Query(l.after); after != "" {
		i := slices.IndexFunc(ids, func(id string) bool { return l.before+id == after })
		if i < 0 {
			return api.Newf(api.InvalidType, "'%s' names nothing in this list.", l.after).WithParam(l.after)
		}
		ids = ids[i+1:]
	}
	out := api.List[any]{Object: "list", Data: []any{}}
	var first, last string
	for _, id := range ids {
		v, err := read(tenant, id)
		if ignoreMissing(err) != nil {
			return err
		} else if v == nil {
			continue
		}
		if out.HasMore = len(out.Data) == limit; out.HasMore {
			break
		}
		if out.Data = append(out.Data, v); first == "" {
			first, out.FirstID, out.LastID = l.before+id, &first, &last
		}
		last = l.before + id
	}
	return r.Reply(200, out)
}
