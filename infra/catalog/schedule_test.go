package catalog

import (
	"testing"
	"time"
)

func parse(text string) (s Schedule, err error) {
	err = s.UnmarshalText([]byte(text))
	return s, err
}

func TestScheduleNext(t *testing.T) {
	for _, tc := range []struct{ schedule, after, want string }{
		{"* * * * *", "2026-01-01 00:00:30", "2026-01-01 00:01:00"},
		{"0 8 * * 1-5", "2026-03-06 08:00:00", "2026-03-09 08:00:00"},
		{"0 8 * * mon-fri", "2026-03-06 07:59:59", "2026-03-06 08:00:00"},
		{"*/15 9-17 * * *", "2026-01-01 17:45:00", "2026-01-02 09:00:00"},
		{"10/20 * * * *", "2026-01-01 00:10:00", "2026-01-01 00:30:00"},
		{"0 0 1,15 * *", "2026-01-02 00:00:00", "2026-01-15 00:00:00"},
		{"0 0 1 jan *", "2026-01-01 00:00:00", "2027-01-01 00:00:00"},
		{"0 0 29 2 *", "2096-03-01 00:00:00", "2104-02-29 00:00:00"},
		{"0 0 13 * 5", "2026-02-01 00:00:00", "2026-02-06 00:00:00"}, // either day field
		{"0 0 */2 * 1", "2026-02-01 00:00:00", "2026-02-02 00:00:00"},
		{"0 12 * * 7", "2026-02-02 00:00:00", "2026-02-08 12:00:00"},
		{"0 12 * * sun,6-7", "2026-02-02 00:00:00", "2026-02-07 12:00:00"},
	} {
		s, err := parse(tc.schedule)
		if err != nil {
			t.Errorf("%s: %v", tc.schedule, err)
			continue
		}
		after, _ := time.Parse(time.DateTime, tc.after)
		if got := s.Next(after).Format(time.DateTime); got != tc.want {
			t.Errorf("%s after %s: %s, want %s", tc.schedule, tc.after, got, tc.want)
		}
	}
}

func TestScheduleRefused(t *testing.T) {
	for _, s := range []string{
		" ", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "-1 * * * *",
		"*/0 * * * *", "*/x * * * *", "1- * * * *", "0 0 31 2,4 *", "a * * * *", "* * * mon *",
	} {
		if _, err := parse(s); err == nil {
			t.Errorf("%q accepted", s)
		}
	}
}

// TestScheduleOverClockChanges: a time that a day lacks because clocks are put forward fires an hour later; only a
// midnight is skipped.
func TestScheduleOverClockChanges(t *testing.T) {
	for _, tc := range []struct{ zone, schedule, after, want string }{
		{"America/Sao_Paulo", "0 0 * * *", "2018-11-03 12:00:00", "2018-11-05 00:00:00"},
		{"Europe/Berlin", "30 2 * * *", "2026-03-28 12:00:00", "2026-03-29 03:30:00"},
		{"Europe/Berlin", "0 8 * * *", "2026-03-28 12:00:00", "2026-03-29 08:00:00"},
		{"Europe/Berlin", "0 8 * * *", "2026-10-24 12:00:00", "2026-10-25 08:00:00"},
	} {
		zone, err := time.LoadLocation(tc.zone)
		if err != nil {
			t.Skip(err)
		}
		s, err := parse(tc.schedule)
		if err != nil {
			t.Fatal(err)
		}
		after, _ := time.ParseInLocation(time.DateTime, tc.after, zone)
		if got := s.Next(after).Format(time.DateTime); got != tc.want {
			t.Errorf("%s %s after %s: %s, want %s", tc.zone, tc.schedule, tc.after, got, tc.want)
		}
	}
}

func FuzzParseSchedule(f *testing.F) {
	f.Add("0 8 * * 1-5")
	f.Add("*/99999999999 1-2/3 * jan sun")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse(text)
		if err != nil {
			return
		}
		again, err := parse(s.String())
		if now := time.Now(); err != nil || again.String() != s.String() || !again.Next(now).Equal(s.Next(now)) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

func TestWarmupActive(t *testing.T) {
	s, err := parse("0 8 * * 1-5")
	if err != nil {
		t.Fatal(err)
	}
	w := Warmup{Schedule: s, For: Duration(2 * time.Hour)}
	monday := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	for clock, want := range map[string]bool{"07:59:59": false, "08:00:00": true, "09:59:59": true, "10:00:01": false} {
		at, _ := time.Parse(time.TimeOnly, clock)
		now := monday.Add(at.Sub(at.Truncate(24 * time.Hour)))
		if got := w.Active(now); got != want {
			t.Errorf("%s: %t", clock, got)
		}
		if w.Active(now.AddDate(0, 0, 5)) {
			t.Errorf("Saturday %s: active", clock)
		}
	}
	if (Warmup{}).Active(monday) {
		t.Error("the zero warm-up is active")
	}
}
