package batches

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/web"
	"reveille/infra/jsonscan"
)

// messagesEndpoint is the endpoint of Anthropic's message batches. They are batches whose input file comes from the
// request that makes them, and whose outcome files are sent as one.
const (
	messagesEndpoint = "/v1/messages"
	messagesWindow   = 24 * time.Hour
	messagesID       = "msg"   // before the id of a batch
	MaxMessages      = 100_000 // requests of one
)

// messageBatch is a batch as Anthropic's clients see it.
type messageBatch struct {
	ID          string        `json:"id"`
	Type        string        `json:"type"`
	Status      string        `json:"processing_status"`
	Counts      messageCounts `json:"request_counts"`
	CreatedAt   time.Time     `json:"created_at"`
	ExpiresAt   time.Time     `json:"expires_at"`
	EndedAt     *time.Time    `json:"ended_at"`
	CancelledAt *time.Time    `json:"cancel_initiated_at"`
	ArchivedAt  *time.Time    `json:"archived_at"`
	ResultsURL  *string       `json:"results_url"` // relative to the gateway's address
	WaitReason  string        `json:"wait_reason,omitempty"`
}

type messageCounts struct {
	Processing int `json:"processing"`
	Succeeded  int `json:"succeeded"`
	Errored    int `json:"errored"`
	Canceled   int `json:"canceled"`
	Expired    int `json:"expired"`
}

func messageBatchOf(b *stored) messageBatch {
	at := func(unix int64) time.Time { return time.Unix(unix, 0).UTC() }
	c := b.RequestCounts
	out := messageBatch{
		ID: messagesID + b.ID, Type: "message_batch", Status: "in_progress", CreatedAt: at(b.CreatedAt), ExpiresAt: at(b.ExpiresAt), WaitReason: b.WaitReason,
		Counts: messageCounts{Processing: c.Total - c.Completed - c.Failed, Succeeded: c.Completed, Errored: c.Failed},
	}
	if b.CancellingAt != nil {
		out.Status, out.CancelledAt = "canceling", new(at(*b.CancellingAt))
	}
	if !b.ended() {
		return out
	}
	out.Status, out.EndedAt, out.ResultsURL = "ended", new(at(b.Ended)), new(messagesEndpoint+"/batches/"+out.ID+"/results")
	out.Counts.Processing, out.Counts.Errored = 0, c.Total-c.Completed-b.Cut
	switch b.Status {
	case cancelled:
		out.Counts.Canceled = b.Cut
	case expired:
		out.Counts.Expired = b.Cut
	}
	return out
}

// messageLine is a line of the input file that is made of a request.
type messageLine struct {
	CustomID json.RawMessage `json:"custom_id"`
	Method   string          `json:"method"`
	URL      string          `json:"url"`
	Body     json.RawMessage `json:"body"`
}

// MessagesCreate is POST /messages/batches.
func (s *Service) MessagesCreate(r *web.Request) error {
	if err := r.CheckBody(); err != nil {
		return err
	}
	u, err := s.newUpload(r)
	if err != nil {
		return err
	}
	defer u.drop()
	if err := writeRequests(u, r.Body()); err != nil {
		return folderError(err)
	}
	if _, err := u.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	now := time.Now()
	b, err := s.newBatch(r, Batch{Endpoint: messagesEndpoint, CompletionWindow: messagesWindow.String(), Status: inProgress}, now, messagesWindow, retention)
	if err != nil {
		return err
	}
	if err := b.validate(context.Background(), u.file); err != nil {
		return err
	}
	if b.Errors != nil {
		e := b.Errors.Data[0]
		if e.Line != nil {
			e.Message = "Request " + strconv.Itoa(*e.Line) + ": " + e.Message
		}
		return api.New(api.InvalidRequest, e.Message).WithParam("requests")
	}
	in, err := u.keep(b.ID+".jsonl", now, retention)
	if err != nil {
		return err
	}
	b.InputFileID, b.InProgressAt = in.ID, &b.CreatedAt
	if err := s.write(b.tenant, b.ID, b); err != nil {
		return folderError(errors.Join(err, s.removeFile(b.tenant, in.ID)))
	}
	s.wake()
	return r.Reply(200, messageBatchOf(b))
}

// writeRequests writes the requests of a body as the lines of an input file.
func writeRequests(to io.Writer, body []byte) (err error) {
	out := bufio.NewWriter(to)
	w := jsonscan.WalkOf(body)
	w.Object(func(name []byte) bool {
		if string(name) != "requests" {
			return true
		}
		w.Array(func() bool {
			var values [2]jsonscan.Value
			if err = jsonscan.Scan(w.Raw().Raw, []string{"custom_id", "params"}, values[:]); err != nil || !values[0].Set() || !values[1].Set() {
				err = api.New(api.InvalidType, "Each of 'requests' must be an object with custom_id and params.").WithParam("requests")
				return false
			}
			var text []byte
			if text, err = jsonscan.Marshal(messageLine{values[0].Raw, "POST", messagesEndpoint, values[1].Raw}); err == nil {
				_, err = out.Write(append(text, '\n'))
			}
			return err == nil
		})
		return err == nil
	})
	return errors.Join(err, out.Flush())
}

var anthropic = dialect{listing{batchPrefix, messagesID, "after_id", 20, 1000}, func(b *stored) any {
	if b.Endpoint != messagesEndpoint {
		return nil
	}
	return messageBatchOf(b)
}}

// MessagesGet is GET /messages/batches/{id}.
func (s *Service) MessagesGet(r *web.Request) error { return s.getBatch(r, anthropic) }

// MessagesList is GET /messages/batches, the newest first.
func (s *Service) MessagesList(r *web.Request) error {
	if r.Query("before_id") != "" {
		return api.New(api.UnsupportedParameter, "'before_id' is not supported; use after_id.").WithParam("before_id")
	}
	return s.listBatches(r, anthropic)
}

// MessagesCancel is POST /messages/batches/{id}/cancel.
func (s *Service) MessagesCancel(r *web.Request) error { return s.cancelBatch(r, anthropic) }

// MessagesDelete is DELETE /messages/batches/{id}.
func (s *Service) MessagesDelete(r *web.Request) error {
	b, err := s.batch(r, anthropic)
	if err != nil {
		return err
	}
	if !b.ended() {
		return api.New(api.FileInUse, "The batch has not ended; cancel it first.")
	}
	err = s.remove(s.path(b.tenant, b.ID+record))
	for _, id := range []string{b.InputFileID, b.Output, b.Failed} {
		err = errors.Join(err, s.removeFile(b.tenant, id))
	}
	if err != nil {
		return err
	}
	return r.Reply(200, map[string]string{"id": messagesID + b.ID, "type": "message_batch_deleted"})
}

// messageResult is a line of the results.
type messageResult struct {
	CustomID string `json:"custom_id"`
	Result   struct {
		Type    string          `json:"type"`
		Message json.RawMessage `json:"message,omitempty"`
		Error   json.RawMessage `json:"error,omitempty"`
	} `json:"result"`
}

// MessagesResults is GET /messages/batches/{id}/results.
func (s *Service) MessagesResults(r *web.Request) error {
	b, err := s.batch(r, anthropic)
	if err != nil {
		return err
	}
	if !b.ended() {
		return api.New(api.FileNotFound, "The batch has not ended; it has no results yet.")
	}
	const mediaType = "application/x-jsonl"
	if r.Match.Head {
		r.Send(200, mediaType, nil)
		return nil
	}
	r.CountResponse(200)
	r.Ctx.SetContentType(mediaType)
	r.Stream(func(w *bufio.Writer) {
		for _, id := range []*string{b.OutputFileID, b.ErrorFileID} {
			if id == nil {
				continue
			}
			if err := writeResults(w, s.path(b.tenant, *id)); err != nil {
				panic(err) // the response ends before it is complete
			}
		}
	})
	return nil
}

// writeResults writes the results that an outcome file has. The error is one of reading.
func writeResults(w *bufio.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return ignoreMissing(err)
	}
	defer f.Close()
	for in := bufio.NewReader(f); ; {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var o outcome
		if err := json.Unmarshal(line, &o); err != nil {
			return err
		}
		out := messageResult{CustomID: o.CustomID}
		switch {
		case o.Response == nil:
			out.Result.Type = map[string]string{errExpired.Code: "expired", errCancelled.Code: "canceled"}[o.Error.Code]
		case o.Response.Status < 300:
			out.Result.Type, out.Result.Message = "succeeded", o.Response.Body
		default:
			out.Result.Type, out.Result.Error = "errored", o.Response.Body
		}
		text, err := jsonscan.Marshal(out)
		if err != nil {
			return err
		}
		if _, err := w.Write(append(text, '\n')); err != nil {
			return nil // the client has left
		}
	}
}
