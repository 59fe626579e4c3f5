package state_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"reveille/infra/state"
)

// A machine's report on its start is shown until its runner has registered, or the host is woken again. What is in
// Redis is bounded, and only the words of a report count.
func TestReportBoot(t *testing.T) {
	onBoth(t, func(b *bench) {
		s := b.store()
		ctx := t.Context()
		if err := s.ReportBoot(ctx, "stranger", ""); !errors.Is(err, state.ErrUnknownHost) {
			t.Errorf("a host that the pool does not know: %v", err)
		}
		boot := func() state.Boot {
			t.Helper()
			snap, err := s.Snapshot(ctx)
			must(t, err)
			return snap.Hosts["h"].Boot()
		}
		must(t, b.rdb.SAdd(ctx, prefix+"hosts", "h").Err())
		must(t, s.ReportBoot(ctx, "h", ""))
		if got := boot(); got != (state.Boot{State: state.Booting, AtMS: b.now}) {
			t.Errorf("booting: %+v", got)
		}
		b.after(time.Minute)
		must(t, s.ReportBoot(ctx, "h", "no\nengines\x1b"+strings.Repeat("x", 5000)))
		if got := boot(); got.State != state.BootFailed || got.AtMS != b.now || len(got.Reason) > 512 || !strings.HasPrefix(got.Reason, "no engines x") {
			t.Errorf("failed: %+v", got)
		}
		must(t, b.rdb.HSet(ctx, prefix+"host:h", "boot_error", strings.Repeat("\n", 9000)).Err())
		if got := boot(); got.Reason != "no reason was given" {
			t.Errorf("a forged reason: %q", got.Reason)
		}
		must(t, b.rdb.HSet(ctx, prefix+"host:h", "boot_state", "\x1b[2J").Err())
		if got := boot(); got != (state.Boot{}) {
			t.Errorf("a forged word: %+v", got)
		}
		must(t, s.ReportBoot(ctx, "h", "why"))
		if _, err := s.ForceWake(ctx, "g", "h"); err != nil {
			t.Fatal(err)
		}
		if got := boot(); got != (state.Boot{}) {
			t.Errorf("after a wake: %+v", got)
		}
		must(t, s.ReportBoot(ctx, "h", ""))
		_, _, err := s.Register(ctx, state.HostInfo{Name: "h", Boot: "1", Addr: "127.0.0.1:1"})
		must(t, err)
		must(t, s.ReportBoot(ctx, "h", "late"))
		if got := boot(); got != (state.Boot{}) {
			t.Errorf("the runner is up: %+v", got)
		}
	})
}
