package mmcache

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/mmstats"
	"reveille/runner/filestate"
)

// Environment variables that the interposer reads.
const (
	EnvPreload  = "LD_PRELOAD"
	EnvSocket   = "REVEILLE_MM_SOCKET"
	EnvLookupMS = "REVEILLE_MM_LOOKUP_MS"
	EnvEncodeMS = "REVEILLE_MM_ENCODE_MS"
)

// LibraryName is the interposer's file name.
const LibraryName = "libreveille_mm.so"

// releaseName is the interposer's file name in a release (make dist).
const releaseName = "libreveille_mm_linux_" + runtime.GOARCH + ".so"

// ErrNoInterposer means that engines cannot be attached: the library was not built, or this system does not support
// it. Engines also run without it, but uncached.
var ErrNoInterposer = errors.New("mmcache: no interposer")

// FindLibrary returns the path of the interposer in the first of dirs that contains it, or ErrNoInterposer. The
// Makefile puts it next to the programs. The name it has in a release, which includes the architecture, is accepted
// too.
func FindLibrary(dirs ...string) (string, error) {
	if !supported {
		return "", fmt.Errorf("%w: not on this system", ErrNoInterposer)
	}
	for _, d := range dirs {
		for _, name := range []string{LibraryName, releaseName} {
			p, err := filepath.Abs(filepath.Join(d, name))
			if err != nil {
				continue
			}
			if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("%w: %s was not built (it needs a C compiler)", ErrNoInterposer, LibraryName)
}

// An Attachment is the cache of one engine process. Its socket serves only one model, whatever the engine claims. It is
// safe for concurrent use.
type Attachment struct {
	s     *Server
	model string // id under which media are counted
	byKey bool   // tenants share nothing
	path  string
	ln    *net.UnixListener

	files     []filestate.File
	started   chan bool     // receives one value: whether the engine has read the same files
	decided   chan struct{} // closed by completeNamespace when namespace and known are final
	namespace Namespace
	known     bool // whether namespace is complete; if not, nothing is looked up or stored
	ctx       context.Context
	cancel    context.CancelFunc

	hits, misses atomic.Int64
	requests     requests

	mu       sync.Mutex
	closed   bool
	open     map[*session]struct{}
	lookedUp map[Ident]Digest // identities that look-ups have returned, with the layout of the outputs
	wg       sync.WaitGroup   // accept and sessions
}

// maxLookedUp bounds len(Attachment.lookedUp); engines encode soon after a look-up.
const maxLookedUp = 4096

// recordLookup records the identity that a look-up returns, so that the engine can acquire and store it.
func (a *Attachment) recordLookup(id Ident, l Layout) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.lookedUp) >= maxLookedUp {
		clear(a.lookedUp)
	}
	a.lookedUp[id] = l.digest()
}

// wasLookedUp reports whether a look-up of this engine has returned an identity for outputs of this layout.
func (a *Attachment) wasLookedUp(id Ident, l Layout) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	digest, ok := a.lookedUp[id]
	return ok && digest == l.digest()
}

const (
	maxSessions = 64                    // of one engine
	acceptPause = 20 * time.Millisecond // after failing to accept a connection
)

// Attach creates the socket for an engine of model m that is about to start as e describes. It returns ErrNoInterposer
// if engines cannot be attached, and another error if an encoder file cannot be inspected. Call Started when the engine
// serves, and Detach when it has exited.
func (s *Server) Attach(m *catalog.Model, e Encoder) (*Attachment, error) {
	if !supported || s.cfg.Library == "" {
		return nil, ErrNoInterposer
	}
	if strings.ContainsAny(s.cfg.Library, " :") {
		return nil, fmt.Errorf("%w: the dynamic linker does not accept a path with a space or colon: %s", ErrNoInterposer, s.cfg.Library)
	}
	files, err := filestate.OfEngine(e.Projector, e.Program, e.Env)
	if err != nil {
		return nil, fmt.Errorf("mmcache: %w", err)
	}
	return s.listen(m.ID, Namespace{Pool: s.cfg.Pool, Model: m.StableID(), Sig: Sig(m.Signature())}, func(a *Attachment) {
		a.files, a.byKey = files, m.MMCache != catalog.ShareAll
		a.wg.Go(func() { a.completeNamespace(e) })
	})
}

// completeNamespace computes the encoder's digest while the engine starts. It accepts the digest only if the engine has
// read the same files.
func (a *Attachment) completeNamespace(e Encoder) {
	defer close(a.decided)
	start := time.Now()
	sum, err := e.digest(a.ctx, &a.s.contents, a.files)
	log := a.s.cfg.Log.With("model", a.model)
	if err != nil {
		if a.ctx.Err() == nil {
			log.Warn("encoder outputs are not cached", "error", err)
		}
		return
	}
	log.Debug("encoder identified", "digest", hex.EncodeToString(sum[:8]), "files", len(a.files), "took", time.Since(start))
	select {
	case same := <-a.started:
		if !same {
			log.Warn("encoder outputs are not cached: a file of the projector or the engine changed while the engine started; reload the model")
			return
		}
		a.namespace.Encoder, a.known = sum, true
	case <-a.ctx.Done():
	}
}

// Started reports that the engine has read its files and serves. Nothing is cached before that. If a file changed since
// Attach, the engine stays uncached. Later changes do not affect it. Call Started once; a nil Attachment is allowed.
func (a *Attachment) Started() {
	if a != nil {
		a.started <- filestate.Unchanged(a.files)
	}
}

// awaitNamespace waits for the engine's namespace until ctx ends. It returns false if it is unknown.
func (a *Attachment) awaitNamespace(ctx context.Context) (Namespace, bool) {
	select {
	case <-a.decided:
		return a.namespace, a.known
	case <-ctx.Done():
		return Namespace{}, false
	}
}

// listen creates an attachment. begin starts the goroutine that completes its namespace.
func (s *Server) listen(model string, namespace Namespace, begin func(*Attachment)) (*Attachment, error) {
	var name [6]byte
	_, _ = rand.Read(name[:]) // never fails
	path := filepath.Join(s.cfg.Dir, "mm-"+hex.EncodeToString(name[:])+".sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("mmcache: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("mmcache: %w", err)
	}
	a := &Attachment{
		s: s, model: model, namespace: namespace, path: path, ln: ln,
		open: map[*session]struct{}{}, lookedUp: map[Ident]Digest{},
		started: make(chan bool, 1), decided: make(chan struct{}),
	}
	a.ctx, a.cancel = context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		a.cancel()
		_ = ln.Close()
		return nil, ErrClosed
	}
	s.attached[a] = struct{}{}
	begin(a)
	a.wg.Add(1)
	go a.accept()
	return a, nil
}

// Env returns the environment variables to add for the engine.
func (a *Attachment) Env() map[string]string {
	env := a.s.Env()
	env[EnvSocket] = a.path
	env[EnvLookupMS] = strconv.FormatInt(a.s.cfg.LookupWait.Milliseconds(), 10)
	env[EnvEncodeMS] = strconv.FormatInt(a.s.cfg.EncodeWait.Milliseconds(), 10)
	return env
}

// Env returns the environment variables to add for an engine that reads media but is not attached. The interposer then
// caches nothing; it only gives each medium a name, so that llama-server's prompt cache does not confuse them.
func (s *Server) Env() map[string]string { return map[string]string{EnvPreload: s.cfg.Library} }

// Counts returns how many media all of the engine's requests so far have taken from the cache, and how many were
// encoded; [Attachment.Begin] gives one request's share. A medium that occurs twice in a request counts once. Media
// that the engine took from its own prompt cache are not counted.
func (a *Attachment) Counts() (hits, misses int64) { return a.hits.Load(), a.misses.Load() }

// recordHit counts a medium served from the cache.
func (a *Attachment) recordHit(t tier, e *Entry) {
	a.hits.Add(1)
	a.s.m.hits[t].Inc()
	a.s.m.saved.Add(e.EncodeTime.Seconds())
	counter := [...]string{tierMemory: mmstats.CountHitsL1, tierRedis: mmstats.CountHitsL2}[t]
	a.s.cfg.Count(mmstats.CounterOf(counter, a.model), 1)
	a.s.cfg.Count(mmstats.CounterOf(mmstats.CountSavedSeconds, a.model), e.EncodeTime.Seconds())
}

// recordMiss counts a medium that the engine is about to encode.
func (a *Attachment) recordMiss() {
	a.misses.Add(1)
	a.s.m.misses.Inc()
	a.s.cfg.Count(mmstats.CounterOf(mmstats.CountMisses, a.model), 1)
}

// Detach closes the socket and waits until its goroutines have ended. An engine that is still running continues
// uncached. Detach can be called more than once, and on nil.
func (a *Attachment) Detach() {
	if a == nil {
		return
	}
	a.mu.Lock()
	a.closed = true
	a.cancel()
	_ = a.ln.Close() // removes the file
	for x := range a.open {
		_ = x.conn.Close()
		x.cancel()
	}
	a.mu.Unlock()
	a.wg.Wait()
	a.s.mu.Lock()
	delete(a.s.attached, a)
	a.s.mu.Unlock()
}

func (a *Attachment) accept() {
	defer a.wg.Done()
	for {
		c, err := a.ln.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select { // probably out of file descriptors; meanwhile requests are not cached
			case <-a.s.ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		a.mu.Lock()
		if a.closed || len(a.open) >= maxSessions {
			_ = c.Close()
		} else {
			x := newSession(a, c)
			a.open[x] = struct{}{}
			a.wg.Add(1)
			go x.run()
		}
		a.mu.Unlock()
	}
}
