package state

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// Event is one change of the pool as its script published it. Events are hints: they may be lost, so listeners also
// poll.
type Event struct {
	Kind    string            `json:"kind"` // ticket, model, host, catalog, leave, settings, pulled; "sync" (ours): events may have been missed
	Rev     uint64            `json:"rev,string"`
	Ticket  string            `json:"ticket"`
	Host    string            `json:"host"`
	Model   string            `json:"model"`
	State   string            `json:"state"`
	Reason  string            `json:"reason"`
	Gateway string            `json:"gateway"`
	Version string            `json:"version"`
	Fields  map[string]string `json:"fields"` // of a ticket that ended

	Carries json.RawMessage `json:"carries"` // the host after the change, for mirrors
	More    bool            `json:"more"`    // another event of the same change follows
}

// Record returns the ticket of an event that reports its end.
func (e Event) Record() TicketRecord {
	r := ticketRecord(e.Ticket, e.Fields)
	r.State, r.Host, r.Model = TicketState(e.State), e.Host, e.Model
	return r
}

// Listen calls handle for every event until ctx ends, always from the same goroutine. With a host it delivers only the
// events of that host and of the whole pool. After each (re)connection it first calls handle with an event of kind
// "sync". It returns when ctx ends.
func (s *Store) Listen(ctx context.Context, host string, handle func(Event)) {
	channels := []string{s.keys.events()}
	if host != "" {
		channels = []string{s.keys.poolEvents(), s.keys.hostEvents(host)}
	}
	for ctx.Err() == nil {
		s.listenOnce(ctx, channels, handle)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// listenOnce subscribes and delivers events until the connection breaks. go-redis would reconnect silently; here a
// break ends the subscription, so that the caller learns that events may be missing.
func (s *Store) listenOnce(ctx context.Context, channels []string, handle func(Event)) {
	sub := s.rdb.Subscribe(ctx, channels...)
	closed := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer func() {
		if closed() {
			_ = sub.Close()
		}
	}()
	for range channels { // each is confirmed
		if _, err := sub.ReceiveTimeout(ctx, 2*time.Second); err != nil {
			return
		}
	}
	handle(Event{Kind: "sync"})
	for asked := false; ; {
		msg, err := sub.ReceiveTimeout(ctx, 15*time.Second)
		var ne net.Error
		switch {
		case errors.As(err, &ne) && ne.Timeout():
			if asked || sub.Ping(ctx) != nil {
				return // a silently dead peer does not respond to a ping either
			}
			asked = true
		case err != nil:
			return
		default:
			asked = false
		}
		if m, ok := msg.(*redis.Message); ok {
			var e Event
			if json.Unmarshal([]byte(m.Payload), &e) == nil {
				handle(e)
			}
		}
	}
}
