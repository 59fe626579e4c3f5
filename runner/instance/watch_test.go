package instance_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"reveille/runner/instance"
	"reveille/testenv/imds"
	"reveille/testenv/kit"
)

// watching watches in the background.
func watching(t *testing.T, s *imds.Service, log io.Writer) (got <-chan instance.Notice, stop func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	notices, ended := make(chan instance.Notice, 1), make(chan error, 1)
	m := metadata(t, s.URL)
	go func() {
		n, err := instance.Watch(ctx, m, 5*time.Millisecond, logTo(log))
		if err == nil {
			notices <- n
		}
		ended <- err
	}()
	return notices, func() error { cancel(); return <-ended }
}

func TestWatchReturnsNotices(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		path, text string
		want       instance.Notice
	}{
		"spot, terminate": {imds.SpotAction, `{"action": "terminate", "time": "2030-01-02T03:04:05Z"}`, instance.Notice{Reason: instance.Interruption, At: at}},
		"spot, stop":      {imds.SpotAction, `{"action":"stop","time":"2030-01-02T03:04:05Z"}`, instance.Notice{Reason: instance.Interruption, At: at}},
		"group":           {imds.Target, "Terminated", instance.Notice{Reason: instance.Termination}},
		"warm pool":       {imds.Target, "Warmed:Stopped", instance.Notice{Reason: instance.Termination}},
		"warm pool's end": {imds.Target, "Warmed:Terminated", instance.Notice{Reason: instance.Termination}},
	} {
		t.Run(name, func(t *testing.T) {
			s := imds.Start(t, map[string]string{imds.Target: "InService", "events/recommendations/rebalance": `{"noticeTime":"2030-01-01T00:00:00Z"}`})
			got, stop := watching(t, s, &kit.Buffer{})
			reads := s.Reads(imds.Target)
			kit.Eventually(t, "some looks without a notice", func() bool { return s.Reads(imds.Target) > reads+3 })
			s.Set(c.path, c.text)
			select {
			case n := <-got:
				if n.Reason != c.want.Reason || !n.At.Equal(c.want.At) {
					t.Errorf("got %+v, want %+v", n, c.want)
				}
			case <-time.After(60 * time.Second):
				t.Error("no notice")
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A spot notice that cannot be understood is one all the same, with the two minutes that AWS gives.
func TestNoticeWithoutATimeCountsFromNow(t *testing.T) {
	for _, text := range []string{`{"action":"terminate"}`, "soon", `{"time":"tomorrow"}`} {
		s := imds.Start(t, map[string]string{imds.SpotAction: text})
		before := time.Now()
		n, err := instance.Watch(t.Context(), metadata(t, s.URL), 0, logTo(io.Discard))
		if err != nil || n.Reason != instance.Interruption || n.At.Before(before.Add(2*time.Minute)) || n.At.After(time.Now().Add(2*time.Minute)) {
			t.Errorf("%s: %+v %v", text, n, err)
		}
	}
}

// A service that fails is asked on, and the log says so once.
func TestWatchContinuesAfterFailures(t *testing.T) {
	s := imds.Start(t, nil)
	log := &kit.Buffer{}
	s.Break(http.StatusServiceUnavailable)
	got, stop := watching(t, s, log)
	kit.Eventually(t, "the failure is logged", func() bool { return strings.Count(log.String(), "metadata unavailable") == 1 })
	s.Break(0)
	kit.Eventually(t, "the recovery is logged", func() bool { return strings.Count(log.String(), "available again") == 1 })
	s.Interrupt(time.Now())
	<-got
	if err := stop(); err != nil || strings.Count(log.String(), "level=WARN") != 1 {
		t.Errorf("%v, %d warnings", err, strings.Count(log.String(), "level=WARN"))
	}
	_, stop = watching(t, imds.Start(t, nil), log)
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}
