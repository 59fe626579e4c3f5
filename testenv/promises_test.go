package testenv

import (
	"reflect"
	"testing"
	"time"

	gateway "reveille/gateway/app"
	"reveille/infra/recipe"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
	runner "reveille/runner/app"
	"reveille/runner/httpapi"
	"reveille/runner/instance"
)

// The times that are promised for each fault, as the programs have them unless they are told otherwise. Suites with real
// processes set shorter ones, or allow for a slow machine.
func TestPromisedTimes(t *testing.T) {
	setting := func(settings any, field string) time.Duration {
		t.Helper()
		f, ok := reflect.TypeOf(settings).FieldByName(field)
		if !ok {
			t.Fatalf("%T has no %s", settings, field)
		}
		d, err := time.ParseDuration(f.Tag.Get("default"))
		if err != nil {
			t.Fatalf("%s: %v", field, err)
		}
		return d
	}
	var front gateway.GatewayFlags
	var host runner.Settings
	for _, c := range []struct {
		fault     int
		what      string
		got, most time.Duration
	}{
		{8, "a host without a heartbeat is unknown", state.LostAfter, 10 * time.Second},
		{10, "a load without progress is ended", recipe.DefaultStallTimeout, 60 * time.Second},
		{10, "a load is ended", recipe.DefaultLoadTimeout, 300 * time.Second},
		{10, "SIGKILL follows SIGTERM", recipe.DefaultStopGrace, 10 * time.Second},
		{11, "the first byte is waited for", httpapi.DefaultFirstByte, 120 * time.Second},
		{11, "the first byte is waited for, by the setting", setting(host, "FirstByte"), 120 * time.Second},
		{14, "a dead gateway's place in the queue ends", state.WaiterLease, 15 * time.Second},
		{14, "a dead gateway's wake lease ends", state.WakeLease, 15 * time.Second},
		{16, "clocks may differ", rpc.MaxSkew, 30 * time.Second},
		{18, "a departure is looked for", relay.DefaultWatchDelay, time.Second},
		{22, "a busy victim's turn ends", setting(host, "FairAfter"), 2 * time.Second},
		{26, "a spot notice is looked for, twice", 2 * instance.PollEvery, 5 * time.Second},
		{31, "streams may go on after SIGTERM", setting(front, "ShutdownTimeout"), 10 * time.Minute},
		{0, "a request is held", setting(front, "Hold"), 300 * time.Second},
		{0, "a stream has a status of its own", setting(front, "CommitAfter"), 5 * time.Second},
		{0, "comments are apart", setting(front, "Keepalive"), 5 * time.Second},
	} {
		if c.got <= 0 || c.got > c.most {
			t.Errorf("fault %d: %s after %v, want at most %v", c.fault, c.what, c.got, c.most)
		}
	}
}
