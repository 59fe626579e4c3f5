package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestErrorIsAndAs(t *testing.T) {
	err := fmt.Errorf("serve: %w", New(QueueFull, "Too many are waiting.").WithCause(context.DeadlineExceeded))
	if !errors.Is(err, QueueFull) || errors.Is(err, ModelBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("errors.Is does not see through %v", err)
	}
	if e := As(err); e.Kind != QueueFull {
		t.Errorf("As = %+v", e)
	}
	e := As(io.ErrUnexpectedEOF)
	if e.Kind != InternalError || strings.Contains(e.Message, "EOF") || !errors.Is(e, io.ErrUnexpectedEOF) {
		t.Errorf("a foreign error became %+v", e)
	}
	if As(nil) != nil {
		t.Error("As(nil) is not nil")
	}
	if got := err.Error(); got != "serve: queue_full: Too many are waiting.: context deadline exceeded" {
		t.Errorf("text %q", got)
	}
}

func TestConstructors(t *testing.T) {
	if e := NoModel(); e.Status != 400 || e.Code != "missing_required_parameter" || e.Param != "model" || !strings.HasPrefix(e.Message, "No model specified") {
		t.Errorf("NoModel = %+v", e)
	}
	if e := UnknownModel(strings.Repeat("é", 300)); e.Status != 404 || len(e.Message) > 260 || !strings.Contains(e.Message, "é…") {
		t.Errorf("UnknownModel = %+v", e)
	}
	if e := notAllowed("POST, OPTIONS"); e.Headers[0] != (Header{"Allow", "POST, OPTIONS"}) {
		t.Errorf("notAllowed = %+v", e)
	}
	if e := Unauthorized(); e.Status != 401 || e.Headers[0].Name != "WWW-Authenticate" {
		t.Errorf("Unauthorized = %+v", e)
	}
	if e := New(NoCapacity, "").WithRetryAfter(0); e.RetryAfter != time.Minute {
		t.Errorf("After(0) changed the advice to %v", e.RetryAfter)
	}
	if e := New(QueueFull, "").WithRetryAfter(7 * time.Second); e.RetryAfter != 7*time.Second {
		t.Errorf("After(7s) = %v", e.RetryAfter)
	}
}

func TestAppendHeaders(t *testing.T) {
	middle := func() float64 { return 0.5 }
	tests := []struct {
		e    *Error
		want string
	}{
		{New(QueueFull, ""), "Retry-After=5 retry-after-ms=5000"},
		{New(ModelLoadError, ""), "x-should-retry=false"},
		{notAllowed("GET"), "Allow=GET x-should-retry=false"},
		{New(InternalError, ""), ""},
	}
	for _, tt := range tests {
		got := ""
		for _, h := range tt.e.AppendHeaders(nil, middle) {
			got += " " + h.Name + "=" + h.Value
		}
		if got = strings.TrimSpace(got); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.e.Code, got, tt.want)
		}
	}
}

func TestRetryAdvice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(10*time.Minute)).Draw(t, "d"))
		r := rapid.Float64Range(0, 0.999999).Draw(t, "r")
		seconds, ms := retryAdvice(d, func() float64 { return r })
		if seconds < 1 || seconds > 60 || ms < 1000 || ms > 60_000 || int64(seconds)*1000 < ms || int64(seconds-1)*1000 >= ms {
			t.Fatalf("advice %d s, %d ms for %v", seconds, ms, d)
		}
		bounded := min(max(d, time.Second), time.Minute).Milliseconds()
		if ms < min(max(bounded*79/100, 1000), 60_000) || ms > max(bounded*121/100, 1000) {
			t.Fatalf("%d ms is more than 20 %% off %d ms", ms, bounded)
		}
	})
}
