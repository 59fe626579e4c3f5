// Package hub gives tests a Hugging Face hub on loopback: where a file is and what it is (HEAD of its resolve page, which
// redirects to the store), ranged reads of the store, which has an origin of its own and wants signed URLs, and listings
// of repositories; and ways to make each fail.
package hub

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// Token is what a hub that was told to be Private wants, and Signature is in every URL of a store: neither may be in any
// error, log or answer.
const (
	Token     = "hf_canaryTOKENcanary"
	Signature = "canarySIGNATUREcanary"
)

// Commit is what every revision of every repository is at.
const Commit = "0123456789abcdef0123456789abcdef01234567"

// Hub is a running hub and its store. Its methods are safe for concurrent use.
type Hub struct {
	URL string // http://127.0.0.1:PORT, the endpoint

	t     testing.TB
	hub   *httptest.Server
	store *httptest.Server

	mu       sync.Mutex // guards all below
	files    map[string]map[string]*file
	private  bool
	epoch    int // of signatures; older ones are refused
	breaks   int
	refusals map[string]refusal // by path in a repository
	gate     chan struct{}      // reads of the store stop after gateBytes until it is closed; nil: none do
	reads    []Read
	asked    int
}

type file struct {
	content []byte
	small   bool // kept in Git, not in the store
	sum     string
}

type refusal struct {
	status int
	code   string
}

// Read is one read of the store that was answered with bytes.
type Read struct {
	Path     string // repository and path
	From, To int64  // the range asked for, To is behind it
}

// gateBytes is how much of a range passes a gate that is shut.
const gateBytes = 1000

// Start runs a hub until the test ends.
func Start(t testing.TB) *Hub {
	t.Helper()
	h := &Hub{t: t, files: map[string]map[string]*file{}, refusals: map[string]refusal{}}
	h.hub = httptest.NewServer(http.HandlerFunc(h.serveHub))
	h.store = httptest.NewServer(http.HandlerFunc(h.serveStore))
	h.URL = h.hub.URL
	t.Cleanup(func() {
		h.Open()
		h.hub.Close()
		h.store.Close()
	})
	return h
}

// Put puts a large file into a repository: it is in the store and is known by its SHA-256.
func (h *Hub) Put(repo, path string, content []byte) {
	sum := sha256.Sum256(content)
	h.put(repo, path, &file{content: content, sum: hex.EncodeToString(sum[:])})
}

// PutSmall puts a small file into a repository: it is in Git and is known by its blob's name.
func (h *Hub) PutSmall(repo, path string, content []byte) {
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(content)), content...))
	h.put(repo, path, &file{content: content, small: true, sum: hex.EncodeToString(sum[:])})
}

func (h *Hub) put(repo, path string, f *file) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.files[repo] == nil {
		h.files[repo] = map[string]*file{}
	}
	h.files[repo][path] = f
}

// Damage makes the store hand out other bytes for a file than the hub says.
func (h *Hub) Damage(repo, path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.files[repo][path]
	content := append([]byte(nil), old.content...)
	content[len(content)/2] ^= 1
	h.files[repo][path] = &file{content, old.small, old.sum}
}

// Private makes the hub want the Token.
func (h *Hub) Private() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.private = true
}

// Expire makes the store refuse all URLs that were signed so far.
func (h *Hub) Expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epoch++
}

// Break makes the store break off the next reads, each in the middle of its range.
func (h *Hub) Break(times int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.breaks = times
}

// Refuse makes the store answer reads of a path with a status; 0 takes it back.
func (h *Hub) Refuse(path string, status int, code string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refusals[path] = refusal{status, code}
}

// Shut makes reads of the store stop after their first bytes until Open.
func (h *Hub) Shut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate == nil {
		h.gate = make(chan struct{})
	}
}

// Open lets reads that Shut stopped go on.
func (h *Hub) Open() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate != nil {
		close(h.gate)
		h.gate = nil
	}
}

// Reads are the reads of the store so far.
func (h *Hub) Reads() []Read {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Read(nil), h.reads...)
}

// Asked is how often the hub was asked for anything.
func (h *Hub) Asked() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked
}

// AwaitReads waits until the store has answered that many reads.
func (h *Hub) AwaitReads(n int) {
	h.t.Helper()
	for end := time.Now().Add(60 * time.Second); len(h.Reads()) < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("hub: %d reads of the store in a minute, want %d", len(h.Reads()), n)
		}
	}
}
