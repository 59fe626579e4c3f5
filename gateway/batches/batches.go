package batches

import (
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/web"
)

// Limits of batches.
const (
	MaxLines   = 1_000_000 // of a batch
	maxModels  = 16        // that the lines of a batch may name
	maxOpen    = 100       // unfinished batches of an API key
	maxErrors  = 20        // that a batch reports of its lines' form
	maxPairs   = 16        // of metadata
	minWindow  = time.Second
	maxWindow  = 30 * 24 * time.Hour
	maxPerPage = 100
)

// endpoints are the routes that lines may use.
var endpoints = []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"}

// Values of a batch's status.
const (
	validating = "validating"
	inProgress = "in_progress"
	finalizing = "finalizing"
	completed  = "completed"
	failed     = "failed"
	expired    = "expired"
	cancelling = "cancelling"
	cancelled  = "cancelled"
)

// Batch is a batch as clients see it. A batch that has expires_at in the past is expired as soon as a gateway sees it.
type Batch struct {
	ID               string            `json:"id"`
	Object           string            `json:"object"`
	Endpoint         string            `json:"endpoint"`
	Model            *string           `json:"model"`
	Errors           *lineErrors       `json:"errors"`
	InputFileID      string            `json:"input_file_id"`
	CompletionWindow string            `json:"completion_window"`
	Status           string            `json:"status"`
	OutputFileID     *string           `json:"output_file_id"`
	ErrorFileID      *string           `json:"error_file_id"`
	CreatedAt        int64             `json:"created_at"`
	InProgressAt     *int64            `json:"in_progress_at"`
	ExpiresAt        int64             `json:"expires_at"`
	FinalizingAt     *int64            `json:"finalizing_at"`
	CompletedAt      *int64            `json:"completed_at"`
	FailedAt         *int64            `json:"failed_at"`
	ExpiredAt        *int64            `json:"expired_at"`
	CancellingAt     *int64            `json:"cancelling_at"`
	CancelledAt      *int64            `json:"cancelled_at"`
	RequestCounts    counts            `json:"request_counts"`
	Metadata         map[string]string `json:"metadata"`
	WaitReason       string            `json:"wait_reason,omitempty"` // why lines wait, as text; not of OpenAI's
}

type counts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// lineErrors are why a batch failed.
type lineErrors struct {
	Object string      `json:"object"`
	Data   []lineError `json:"data"`
}

// lineError is an error of a batch or of one of its lines.
type lineError struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	Line    *int    `json:"line"`
}

// Error implements error.
func (e lineError) Error() string { return e.Message }

// stored is the record of a batch.
type stored struct {
	Batch
	tenant string        // the folder of its key
	Key    string        `json:"key"` // hex digest of the API key
	Models []modelLines  `json:"models"`
	Output string        `json:"output"` // ids of the files of its outcomes
	Failed string        `json:"failed"`
	Keep   time.Duration `json:"keep"` // how long these are kept
	Rate   float64       `json:"rate"` // lines a second while lines ran; 0: not measured
	Ended  int64         `json:"ended"`
	Cut    int           `json:"cut"` // lines whose outcome is that they did not run
}

// modelLines is how many lines name a model.
type modelLines struct {
	Model string `json:"model"` // as the lines name it; "" for lines without one
	Lines int    `json:"lines"`
}

func (b *stored) ended() bool { return b.Ended != 0 }

// end sets the final status.
func (b *stored) end(status string, now time.Time) {
	at := now.Unix()
	b.Status, b.Ended = status, at
	*map[string]**int64{completed: &b.CompletedAt, failed: &b.FailedAt, expired: &b.ExpiredAt, cancelled: &b.CancelledAt}[status] = &at
}

// fail adds an error. It reports whether the batch takes no more of them.
func (b *stored) fail(e lineError) (full bool) {
	if b.Errors == nil {
		b.Errors = &lineErrors{Object: "list"}
	}
	b.Errors.Data = append(b.Errors.Data, e)
	return len(b.Errors.Data) >= maxErrors
}

// load reads a batch. Its status is cancelling if a client has cancelled it.
func (s *Service) load(tenant, id string) (*stored, error) {
	b := &stored{tenant: tenant}
	if err := s.read(tenant, id, b); err != nil {
		return nil, err
	}
	if info, err := os.Stat(s.path(tenant, id+stopMark)); err == nil && !b.ended() {
		at := info.ModTime().Unix()
		b.Status, b.CancellingAt = cancelling, &at
	}
	return b, nil
}

// BatchCreate is POST /batches.
func (s *Service) BatchCreate(r *web.Request) error {
	var q struct {
		InputFileID        string            `json:"input_file_id"`
		Endpoint           string            `json:"endpoint"`
		CompletionWindow   string            `json:"completion_window"`
		Metadata           map[string]string `json:"metadata"`
		OutputExpiresAfter *struct {
			Anchor  string `json:"anchor"`
			Seconds int64  `json:"seconds"`
		} `json:"output_expires_after"`
	}
	if err := r.Decode(&q); err != nil {
		return err
	}
	window, err := time.ParseDuration(q.CompletionWindow)
	switch {
	case !slices.Contains(endpoints, q.Endpoint):
		return api.New(api.InvalidType, "'endpoint' must be one of "+strings.Join(endpoints, ", ")+".").WithParam("endpoint")
	case err != nil || window < minWindow || window > maxWindow:
		return api.Newf(api.InvalidType, "'completion_window' must be a duration from %v to %v, such as 24h.", minWindow, maxWindow).WithParam("completion_window")
	case len(q.Metadata) > maxPairs:
		return api.Newf(api.InvalidType, "'metadata' has more than %d members.", maxPairs).WithParam("metadata")
	}
	for name, value := range q.Metadata {
		if len(name) > 64 || len(value) > 512 {
			return api.New(api.InvalidType, "Names in 'metadata' have at most 64 bytes, and values 512.").WithParam("metadata")
		}
	}
	keep := time.Duration(retention)
	if e := q.OutputExpiresAfter; e != nil {
		if keep, err = lifetimeOf(e.Anchor, e.Seconds, "output_expires_after"); err != nil {
			return err
		}
	}
	_, input, err := s.file(r, q.InputFileID)
	if err != nil {
		return api.As(err).WithParam("input_file_id")
	}
	if input.Purpose != "batch" {
		return api.New(api.InvalidType, "The file's purpose must be batch.").WithParam("input_file_id")
	}
	b, err := s.newBatch(r, Batch{
		Endpoint: q.Endpoint, InputFileID: input.ID, CompletionWindow: q.CompletionWindow, Status: validating, Metadata: q.Metadata,
	}, time.Now(), window, keep)
	if err != nil {
		return err
	}
	if err := s.write(b.tenant, b.ID, b); err != nil {
		return folderError(err)
	}
	s.wake()
	return r.Reply(200, &b.Batch)
}

// newBatch completes a batch of the request's key, unless the key has too many.
func (s *Service) newBatch(r *web.Request, b Batch, now time.Time, window, keep time.Duration) (*stored, error) {
	tenant := s.cfg.Tenant(&r.Key)
	if ids, err := s.ids(tenant, batchPrefix); err != nil {
		return nil, err
	} else if len(ids) >= maxFiles {
		return nil, api.Newf(api.DiskFull, "This key has %d batches, which are removed 30 days after their end.", maxFiles)
	}
	if open, _ := s.open(tenant); len(open) >= maxOpen { // next reports records that cannot be read
		return nil, api.Newf(api.QueueFull, "This key has %d batches that have not ended.", maxOpen)
	}
	b.ID, b.Object, b.CreatedAt, b.ExpiresAt = newID(batchPrefix, now), "batch", now.Unix(), now.Add(window).Unix()
	return &stored{Batch: b, tenant: tenant, Key: hex.EncodeToString(r.Key.Digest[:]), Output: newID(filePrefix, now), Failed: newID(filePrefix, now), Keep: keep}, nil
}

// dialect is how one of the two APIs shows batches.
type dialect struct {
	listing
	show func(*stored) any // nil for a batch that the API does not show
}

var openAI = dialect{listing{batchPrefix, "", "after", 20, maxPerPage}, func(b *stored) any { return &b.Batch }}

// BatchGet is GET /batches/{id}.
func (s *Service) BatchGet(r *web.Request) error { return s.getBatch(r, openAI) }

// BatchList is GET /batches.
func (s *Service) BatchList(r *web.Request) error { return s.listBatches(r, openAI) }

// BatchCancel is POST /batches/{id}/cancel. Lines that have ended keep their outcomes.
func (s *Service) BatchCancel(r *web.Request) error { return s.cancelBatch(r, openAI) }

// batch returns the batch of the request's key that the request's path names.
func (s *Service) batch(r *web.Request, d dialect) (*stored, error) {
	if id, ok := strings.CutPrefix(r.Match.ID, d.before); ok && isID(batchPrefix, id) {
		b, err := s.load(s.cfg.Tenant(&r.Key), id)
		if ignoreMissing(err) != nil {
			return nil, err
		} else if err == nil && d.show(b) != nil {
			return b, nil
		}
	}
	return nil, api.New(api.BatchNotFound, "No batch has that id: it expired, or belongs to another key.")
}

func (s *Service) getBatch(r *web.Request, d dialect) error {
	b, err := s.batch(r, d)
	if err != nil {
		return err
	}
	return r.Reply(200, d.show(b))
}

func (s *Service) listBatches(r *web.Request, d dialect) error {
	return s.page(r, d.listing, func(tenant, id string) (any, error) {
		b, err := s.load(tenant, id)
		if err != nil {
			return nil, err
		}
		return d.show(b), nil
	})
}

func (s *Service) cancelBatch(r *web.Request, d dialect) error {
	b, err := s.batch(r, d)
	if err != nil {
		return err
	}
	if b.ended() {
		return api.Newf(api.BatchEnded, "The batch has ended: it is %s.", b.Status)
	}
	f, err := os.OpenFile(s.path(b.tenant, b.ID+stopMark), os.O_CREATE|os.O_WRONLY, 0o600) // its time is that of the first cancel
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return folderError(err)
	}
	s.wake()
	return s.getBatch(r, d)
}

// open returns the batches of a key that have not ended, the oldest first. The error is of those that cannot be read.
func (s *Service) open(tenant string) (open []*stored, err error) {
	ids, err := s.ids(tenant, batchPrefix)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, id := range ids {
		if _, ended := s.final.Load(id); ended {
			continue
		}
		b, err := s.load(tenant, id)
		switch {
		case err != nil:
			errs = append(errs, ignoreMissing(err))
		case b.ended():
			s.final.Store(id, true)
		default:
			open = append(open, b)
		}
	}
	return open, errors.Join(errs...)
}

// inUse returns the ids of the files that batches of a key still need. After an error, there may be more.
func (s *Service) inUse(tenant string) (map[string]bool, error) {
	open, err := s.open(tenant)
	used := map[string]bool{}
	for _, b := range open {
		used[b.InputFileID], used[b.Output], used[b.Failed] = true, true, true
	}
	return used, err
}
