// Package conversations saves what llama-server computed for its conversations, and restores it before a request that
// continues them, in the same process or a later one that loads the same model in the same way. The next turn of a chat
// then computes only what is new. See infra/docs/conversations.md and infra/adr/0025-conversations.md.
package conversations

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/shirou/gopsutil/v4/disk"

	"reveille/infra/state"
	"reveille/runner/engineslots"
	"reveille/runner/filestate"
)

// DefaultTTL is how long a conversation is kept.
const DefaultTTL = 24 * time.Hour

// Config configures a [Store]. Dir and Log are required.
type Config struct {
	Dir     string        // folder of this store alone; created if missing
	Bytes   int64         // maximum bytes of all files; 0: a tenth of the files and the disk's free space
	TTL     time.Duration // 0 means DefaultTTL
	Log     *slog.Logger
	Metrics *metrics.Set // receives the metrics; nil means a separate set
	// Announce publishes what this host has saved of a model; loads prefer such a host. nil: nothing is published.
	Announce func(model string, c state.Conversations) error
}

// Store is the folder of saved conversations. It is safe for concurrent use. It removes the ones of the least value to
// stay within Config.Bytes.
type Store struct {
	cfg      Config
	root     *os.Root
	m        meters
	contents filestate.Contents
	work     sync.WaitGroup // calls of storeOne and Engine.identify

	// mu is never held over disk accesses: hosts and their loads wait for it.
	mu          sync.Mutex
	closed      bool
	entries     map[string]*entry // by file name
	places      map[place]*entry  // the last saved one for each mark
	total       int64             // their bytes
	copying     map[place]int     // calls of storeOne in progress, by the end of the conversation
	life        context.Context   // of identify, ended by Close
	end         context.CancelFunc
	stored      chan struct{}          // closed and replaced when one of them ends
	forgettings map[string]*Forgetting // by model, "" for all
	perByte     []float64              // seconds to save or restore a byte, of the last few times
}

// entry is one saved conversation.
type entry struct {
	header
	name string
	size int64     // of the file
	used time.Time // when it was last restored
}

const (
	maxEntries = 4096
	suffix     = ".conversation"
	unfinished = "unfinished-"
)

var (
	errForeign = errors.New("not a saved conversation")
	errDamaged = errors.New("the saved conversation is damaged")
	// errForgotten: the conversation is from before its model's conversations were forgotten.
	errForgotten = errors.New("the conversation is forgotten")
	castagnoli   = crc32.MakeTable(crc32.Castagnoli)
)

// header is the start of a file, before the engine's data. All numbers are little-endian.
type header struct {
	Magic     [8]byte
	Identity  Identity
	Bytes     uint64 // of the engine's data
	Tokens    uint32 // whose state it is
	CRC       uint32 // CRC-32C of the header without it, and of the engine's data
	SavedMS   int64  // its last use, since the epoch
	Model     modelName
	PromptMS  float64            // time to compute the tokens again
	Forgotten uint64             // the last Forget before its engine was prepared, in µs since the epoch
	Tenant    engineslots.Tenant // zero: shared by all
	Sum       [sha256.Size]byte  // SHA-256 of the tokens
	Marks     [maxMarks]mark     // where others can go on with it: at the last one, its end, and before; zero: unused
}

var (
	magic      = [8]byte{'r', 'v', 'c', 'o', 'n', 'v', '1', '0'}
	headerSize = int64(binary.Size(header{}))
)

// Open opens the folder and removes what does not belong there: unfinished, foreign and expired files.
func Open(cfg Config) (*Store, error) {
	cfg.TTL = cmp.Or(max(cfg.TTL, 0), DefaultTTL)
	cfg.Metrics = cmp.Or(cfg.Metrics, metrics.NewSet())
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("conversations: %w", err)
	}
	root, err := os.OpenRoot(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("conversations: %w", err)
	}
	s := &Store{
		cfg: cfg, root: root, entries: map[string]*entry{}, places: map[place]*entry{}, copying: map[place]int{}, stored: make(chan struct{}),
		contents: filestate.Contents{Sampled: true}, forgettings: map[string]*Forgetting{},
	}
	s.life, s.end = context.WithCancel(context.Background())
	if err := s.readFiles(); err != nil {
		return nil, errors.Join(fmt.Errorf("conversations: %w", err), root.Close())
	}
	if s.cfg.Bytes <= 0 {
		usage, err := disk.Usage(cfg.Dir)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("conversations: free space: %w", err), root.Close())
		}
		s.cfg.Bytes = (int64(min(usage.Free, math.MaxInt64/2)) + s.total) / 10
	}
	s.m = newMeters(cfg.Metrics, s)
	gone, _ := s.makeRoomLocked(0)
	_ = s.unlink(gone)
	return s, nil
}

// Close stops the store. It waits until everything saved is on disk.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.work.Wait()
	_ = s.root.Close()
}

// readFiles reads the files of earlier runs.
func (s *Store) readFiles() error {
	list, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, f := range list {
		e, err := s.readEntry(f)
		if err != nil || len(s.entries) >= maxEntries {
			if rm := s.root.Remove(f.Name()); rm != nil {
				s.cfg.Log.Warn("cannot remove a file that is not a saved conversation", "file", f.Name(), "error", rm)
			}
			continue
		}
		s.addLocked(e)
		s.total += e.size
	}
	return nil
}

func (s *Store) readEntry(f fs.DirEntry) (*entry, error) {
	if !f.Type().IsRegular() || !strings.HasSuffix(f.Name(), suffix) {
		return nil, errForeign
	}
	file, err := s.root.Open(f.Name())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	e := &entry{name: f.Name()}
	if err := binary.Read(file, binary.LittleEndian, &e.header); err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if e.size = info.Size(); e.Magic != magic || e.Bytes > math.MaxInt64/2 || e.size != headerSize+int64(e.Bytes) || e.age() < -time.Second {
		return nil, errForeign
	}
	return e, nil
}

// age returns the time since its last use.
func (e *entry) age() time.Duration {
	return min(time.Since(time.UnixMilli(e.SavedMS)), time.Since(e.used))
}

// addLocked adds an entry, whose bytes are counted already.
func (s *Store) addLocked(e *entry) {
	s.entries[e.name] = e
	for _, key := range e.keys() {
		s.places[place{e.Identity, e.Tenant, key}] = e
	}
}

// keys returns the keys of the places where others can go on, the last at its end.
func (e *entry) keys() (out []Key) {
	for _, m := range e.Marks {
		if m != (mark{}) {
			out = append(out, m.Key)
		}
	}
	return out
}

// end returns the key of all its messages.
func (e *entry) end() Key { return e.Marks[maxMarks-1].Key }

// share returns which part of the conversation is before the mark with a key.
func (e *entry) share(key Key) float64 {
	for _, m := range e.Marks {
		if all := e.Marks[maxMarks-1].Bytes; m.Key == key && m.Bytes < all {
			return float64(m.Bytes) / float64(all)
		}
	}
	return 1
}

// find returns the saved conversation with a key, nil for none.
func (s *Store) find(p place) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.places[p]; e != nil && e.age() < s.cfg.TTL && !s.isForgottenLocked(e) {
		return e
	}
	return nil
}

// use records that an entry was restored.
func (s *Store) use(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.used = time.Now()
}

// value is what an entry is worth keeping: the longer it takes to compute and the more recently it was used.
func (e *entry) value() float64 { return e.PromptMS / (e.age() + time.Minute).Seconds() }

// worth returns the time that restoring the entry saves.
func (e *entry) worth() time.Duration { return time.Duration(e.PromptMS * float64(time.Millisecond)) }

// makeRoomLocked drops expired conversations, and those of the least value until size more bytes fit. It reports
// whether they do.
func (s *Store) makeRoomLocked(size int64) (gone []*entry, fits bool) {
	if size > s.cfg.Bytes {
		return nil, false
	}
	list := make([]*entry, 0, len(s.entries))
	for _, e := range s.entries {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *entry) int { return cmp.Compare(a.value(), b.value()) })
	for _, e := range list {
		if s.total+size > s.cfg.Bytes || len(s.entries) >= maxEntries || e.age() >= s.cfg.TTL {
			gone = s.dropLocked(gone, e)
		}
	}
	return gone, s.total+size <= s.cfg.Bytes
}

// dropLocked drops an entry, if the store still has it, and appends it to those whose files unlink must remove.
func (s *Store) dropLocked(gone []*entry, e *entry) []*entry {
	if s.entries[e.name] != e {
		return gone
	}
	delete(s.entries, e.name)
	for _, key := range e.keys() {
		if p := (place{e.Identity, e.Tenant, key}); s.places[p] == e {
			delete(s.places, p)
		}
	}
	s.total -= e.size
	return append(gone, e)
}

// drop removes an entry, if the store still has it.
func (s *Store) drop(e *entry) {
	s.mu.Lock()
	gone := s.dropLocked(nil, e)
	s.mu.Unlock()
	_ = s.unlink(gone)
}

// unlink removes the files of dropped entries.
func (s *Store) unlink(gone []*entry) error {
	var errs error
	for _, e := range gone {
		if err := s.root.Remove(e.name); err != nil {
			s.cfg.Log.Warn("cannot remove a saved conversation", "file", e.name, "error", err)
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// recordSpeed records how long the engine took to save or restore bytes.
func (s *Store) recordSpeed(bytes int64, took time.Duration) {
	if bytes <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.perByte = append(s.perByte[max(len(s.perByte)-4, 0):], took.Seconds()/float64(bytes))
}

// dropMeasurement drops the oldest measurement, so that a few slow ones do not prevent conversations from being saved
// forever.
func (s *Store) dropMeasurement() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.perByte = s.perByte[min(1, len(s.perByte)):]
}

// cost estimates the time to save or restore bytes: the median of the last measurements. Missing ones up to three are
// replaced by the speed of a usual disk, so that a single slow measurement has no effect.
func (s *Store) cost(bytes int64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	const usual = 1e-9
	known := slices.Clone(s.perByte)
	for len(known) < 3 {
		known = append(known, usual)
	}
	slices.Sort(known)
	return time.Duration(known[len(known)/2] * float64(bytes) * float64(time.Second))
}

// savedFile is a conversation that an engine has written.
type savedFile struct {
	header   // without Magic and CRC
	file     *os.File
	replaces func(end Key) bool // tells whether it continues a conversation of the same owner; may be nil
}

// store copies a file that an engine saved into the store in the background, closes it, and announces it to the pool.
// [Store.await] waits for the copies.
func (s *Store) store(f savedFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = f.file.Close()
		return
	}
	end := place{f.Identity, f.Tenant, f.Marks[maxMarks-1].Key}
	s.copying[end]++
	s.work.Go(func() {
		err := s.storeOne(f)
		_ = f.file.Close()
		switch {
		case errors.Is(err, errForgotten):
			s.m.forgotten.Inc()
		case err != nil:
			s.m.full.Inc()
			s.cfg.Log.Warn("conversation not stored", "tokens", f.Tokens, "error", err)
		default:
			s.m.saved.Inc()
		}
		s.mu.Lock()
		if s.copying[end]--; s.copying[end] == 0 {
			delete(s.copying, end)
		}
		close(s.stored)
		s.stored = make(chan struct{})
		s.mu.Unlock()
		s.announce((&entry{header: f.header}).model(), f.Identity)
	})
}

// announce publishes what this host has saved of a model.
func (s *Store) announce(model string, id Identity) {
	var c state.Conversations
	s.mu.Lock()
	for _, e := range s.entries {
		if e.Identity != id || e.age() >= s.cfg.TTL {
			continue
		}
		c.Count++
		c.Tokens += int64(e.Tokens)
		c.Bytes += e.size
		c.SavedMS = max(c.SavedMS, e.SavedMS)
	}
	s.mu.Unlock()
	if c.Count == 0 || s.cfg.Announce == nil {
		return
	}
	if err := s.cfg.Announce(model, c); err != nil {
		s.cfg.Log.Debug("saved conversations not announced", "model", model, "error", err)
	}
}

// await waits until no conversation that ends at one of the places is being copied, or ctx ends. It reports whether it
// waited.
func (s *Store) await(ctx context.Context, ends []place) (waited bool) {
	for ; ctx.Err() == nil; waited = true {
		s.mu.Lock()
		isCopied := slices.ContainsFunc(ends, func(p place) bool { return s.copying[p] > 0 })
		stored := s.stored
		s.mu.Unlock()
		if !isCopied {
			break
		}
		select {
		case <-stored:
		case <-ctx.Done():
		}
	}
	return waited
}

// storeOne copies one file. Earlier states of the same conversation are removed.
// The copy is not synced: after a power failure the checksum reveals what is missing.
func (s *Store) storeOne(f savedFile) (err error) {
	size := headerSize + int64(f.Bytes)
	e := &entry{header: f.header, size: size, name: hex.EncodeToString(f.Identity[:8]) + "-" + rand.Text() + suffix}
	s.mu.Lock()
	gone, fits := s.makeRoomLocked(size)
	s.total += size // reserved
	e.Magic = magic
	s.mu.Unlock()
	_ = s.unlink(gone)
	tmp := unfinished + e.name
	defer func() {
		if err != nil {
			s.mu.Lock()
			s.total -= size
			s.mu.Unlock()
			_ = s.root.Remove(tmp) // it may not exist
		}
	}()
	if !fits {
		return fmt.Errorf("%d bytes are more than the limit of %d", f.Bytes, s.cfg.Bytes)
	}
	if err = s.writeEntry(tmp, e, f.file); err == nil {
		err = s.root.Rename(tmp, e.name)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	gone = nil
	forgotten := s.isForgottenLocked(e)
	if forgotten {
		gone = []*entry{e}
	} else {
		for _, old := range s.entries {
			if old.Identity == e.Identity && old.Tenant == e.Tenant && f.replaces != nil && f.replaces(old.end()) {
				gone = s.dropLocked(gone, old)
			}
		}
		s.addLocked(e)
	}
	s.mu.Unlock()
	if err := s.unlink(gone); forgotten {
		return errors.Join(errForgotten, err)
	}
	return nil
}

// writeEntry writes an entry's file with the data of an engine's file.
func (s *Store) writeEntry(name string, e *entry, from io.ReaderAt) error {
	f, err := s.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	tokens, err := readTokens(io.NewSectionReader(from, 0, int64(e.Bytes)), int(e.Tokens))
	if err != nil {
		return err
	}
	if sha256.Sum256(tokens) != e.Sum {
		return errors.New("another conversation took its slot")
	}
	sum := e.newSum()
	w := io.MultiWriter(io.NewOffsetWriter(f, headerSize), sum)
	n, err := io.Copy(w, io.NewSectionReader(from, 0, int64(e.Bytes)))
	if err == nil && n != int64(e.Bytes) {
		err = errDamaged
	}
	if err != nil {
		return err
	}
	e.CRC = sum.Sum32()
	if err := binary.Write(io.NewOffsetWriter(f, 0), binary.LittleEndian, e.header); err != nil {
		return err
	}
	return f.Close()
}

// newSum returns the checksum of the header, to which the engine's data are written. A file whose owner was changed
// is damaged.
func (e *entry) newSum() hash.Hash32 {
	h := e.header
	h.CRC = 0
	sum := crc32.New(castagnoli)
	_ = binary.Write(sum, binary.LittleEndian, h) // never fails
	return sum
}

// copyTo writes an entry's data to w. It returns errDamaged if the data differ from what was saved.
func (s *Store) copyTo(ctx context.Context, w io.Writer, e *entry) error {
	f, err := s.root.Open(e.name)
	if err != nil {
		return err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { _ = f.Close() })() // a copy of gigabytes ends with its request
	sum := e.newSum()
	n, err := io.Copy(io.MultiWriter(w, sum), io.NewSectionReader(f, headerSize, int64(e.Bytes)))
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil && (n != int64(e.Bytes) || sum.Sum32() != e.CRC) {
		err = errDamaged
	}
	return err
}

// readTokens returns the tokens, of 4 bytes each, that a state of llama.cpp starts with (llama_state_seq_save_file in
// src/llama-context.cpp: magic "ggsq", version, number of tokens, tokens). Newer servers pack them as if they were
// tokens themselves (server_tokens::serialize in tools/server/server-common.cpp): -1, version 1, number of tokens,
// tokens, number of media, media. States with media are refused, because their tokens do not identify them.
func readTokens(r *io.SectionReader, want int) ([]byte, error) {
	var head struct{ Magic, Version, Tokens uint32 }
	if err := binary.Read(r, binary.LittleEndian, &head); err != nil {
		return nil, err
	}
	if head.Magic != 0x67677371 || want < 0 || int64(want)*4 > r.Size()-12 {
		return nil, errForeign
	}
	isPacked := int64(head.Tokens) != int64(want)
	if isPacked {
		var pack struct {
			Marker          int32
			Version, Tokens uint32
		}
		if err := binary.Read(r, binary.LittleEndian, &pack); err != nil {
			return nil, err
		}
		if pack.Marker != -1 || pack.Version != 1 || int64(pack.Tokens) != int64(want) {
			return nil, errForeign
		}
	}
	out := make([]byte, want*4)
	_, err := io.ReadFull(r, out)
	if isPacked && err == nil {
		var media uint32
		if err = binary.Read(r, binary.LittleEndian, &media); err == nil && media != 0 {
			err = errForeign
		}
	}
	return out, err
}
