package catalog

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

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
		{"0 0 */2 * 1", "2026-02-01 00:00:00", "2026-02-09 00:00:00"},
		{"0 12 * * 7", "2026-02-02 00:00:00", "2026-02-08 12:00:00"},
		{"0 12 * * sun,6-7", "2026-02-02 00:00:00", "2026-02-07 12:00:00"},
	} {
		s, err := parseSchedule(tc.schedule)
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
		"", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "-1 * * * *",
		"5-1 * * * *", "*/0 * * * *", "*/x * * * *", "1- * * * *", ",1 * * * *", "0 0 31 2,4 *", "a * * * *", "* * * mon *",
	} {
		if _, err := parseSchedule(s); err == nil {
			t.Errorf("%q accepted", s)
		}
	}
}

// TestScheduleSkipsNothing compares Next with a check of every minute, over clocks put forward at midnight and back.
func TestScheduleSkipsNothing(t *testing.T) {
	zones := []*time.Location{time.UTC}
	for _, name := range []string{"America/Sao_Paulo", "Europe/Berlin", "Australia/Lord_Howe"} {
		if z, err := time.LoadLocation(name); err == nil {
			zones = append(zones, z)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s, err := parseSchedule(rapid.SampledFrom([]string{
			"0 0 * * *", "30 2 * * *", "*/7 1-3 * * *", "0 0 * * 0", "15 0 1 * *", "59 23 31 12 *", "0 12 4 11 *",
		}).Draw(t, "schedule"))
		if err != nil {
			t.Fatal(err)
		}
		zone := rapid.SampledFrom(zones).Draw(t, "zone")
		start := time.Unix(rapid.Int64Range(1514764800, 1577836800).Draw(t, "start"), 0).In(zone) // 2018 and 2019
		next := s.Next(start)
		if next.IsZero() || !next.After(start) {
			t.Fatalf("next %s after %s", next, start)
		}
		for m := start.Truncate(time.Minute).Add(time.Minute); m.Before(next) && m.Sub(start) < 8*24*time.Hour; m = m.Add(time.Minute) {
			if s.minute>>m.Minute()&1 == 1 && s.hour>>m.Hour()&1 == 1 && s.month>>int(m.Month())&1 == 1 && s.day(m) {
				t.Fatalf("%s after %s: %s, but %s fits", s, start, next, m)
			}
		}
	})
}

func FuzzParseSchedule(f *testing.F) {
	f.Add("0 8 * * 1-5")
	f.Add("*/99999999999 1-2/3 * jan sun")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSchedule(text)
		if err != nil {
			return
		}
		again, err := parseSchedule(s.String())
		if err != nil || again != s {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

func TestWarmupActive(t *testing.T) {
	s, err := parseSchedule("0 8 * * 1-5")
	if err != nil {
		t.Fatal(err)
	}
	w := Warmup{Schedule: s, For: 2 * time.Hour}
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
