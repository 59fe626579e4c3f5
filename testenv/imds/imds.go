// Package imds gives tests the metadata service of an EC2 instance on loopback, version 2: tokens that run out, and data
// below /latest/meta-data/ that a test sets. Programs find it by AWS_EC2_METADATA_SERVICE_ENDPOINT, as AWS's own do.
package imds

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Endpoint is the variable that holds the service's address.
const Endpoint = "AWS_EC2_METADATA_SERVICE_ENDPOINT"

// Paths that runners read.
const (
	InstanceID = "instance-id"
	Region     = "placement/region"
	SpotAction = "spot/instance-action"
	Target     = "autoscaling/target-lifecycle-state"
)

// Service is a running metadata service. Its methods are safe for concurrent use.
type Service struct {
	URL string // http://127.0.0.1:PORT

	mu     sync.Mutex // guards all below
	data   map[string]string
	reads  map[string]int
	tokens int
	valid  map[string]bool // tokens that are accepted
	broken int             // status of all responses, 0: none is broken
}

// Start starts a service with some data, which ends with the test.
func Start(t testing.TB, data map[string]string) *Service {
	t.Helper()
	s := New(data)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// New makes a service with some data, for a server of the test's own.
func New(data map[string]string) *Service {
	s := &Service{data: map[string]string{}, reads: map[string]int{}, valid: map[string]bool{}}
	maps.Copy(s.data, data)
	return s
}

// Set puts a text at a path below /latest/meta-data/; "" takes it away.
func (s *Service) Set(path, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text == "" {
		delete(s.data, path)
		return
	}
	s.data[path] = text
}

// Interrupt announces that the spot market takes the instance at a time.
func (s *Service) Interrupt(at time.Time) {
	s.Set(SpotAction, `{"action":"terminate","time":"`+at.UTC().Format(time.RFC3339)+`"}`)
}

// Expire makes the tokens given so far worthless.
func (s *Service) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.valid)
}

// Break makes every response one of this status; 0 mends the service.
func (s *Service) Break(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = status
}

// Reads counts the reads of a path that showed an accepted token.
func (s *Service) Reads(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads[path]
}

// Tokens counts the tokens that were given.
func (s *Service) Tokens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens
}

// ServeHTTP answers as the service does: a token for a PUT with its time to live, data for a GET with a token.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != 0 {
		w.WriteHeader(s.broken)
		return
	}
	path, below := strings.CutPrefix(r.URL.Path, "/latest/meta-data/")
	switch {
	case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
		if ttl, err := strconv.Atoi(r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds")); err != nil || ttl < 1 || ttl > 21600 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds")) // AWS's SDKs need it
		s.tokens++
		token := "token-" + strconv.Itoa(s.tokens)
		s.valid[token] = true
		_, _ = io.WriteString(w, token)
	case r.Method != http.MethodGet || !below:
		w.WriteHeader(http.StatusNotFound)
	case !s.valid[r.Header.Get("X-Aws-Ec2-Metadata-Token")]:
		w.WriteHeader(http.StatusUnauthorized)
	default:
		s.reads[path]++
		text, there := s.data[path]
		if !there {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, text)
	}
}
