package catalog

import (
	"testing"
	"time"
)

func TestClosed(t *testing.T) {
	c, _, err := Parse("models.yaml", []byte(`
daily_host_hours: 10
batch_hours: {schedule: "0 1 * * *", for: 5h}
models: {m: {type: llm, recipe: standin, device: cpu}}
hosts:
  free: {driver: wol, mac: "02:00:00:00:00:01", devices: [cpu]}
  few: {driver: wol, mac: "02:00:00:00:00:02", devices: [cpu], daily_host_hours: 1.5}
  loud: {driver: wol, mac: "02:00:00:00:00:03", devices: [cpu], rest: {schedule: "0 23 * * *", for: 8h}}
`))
	if err != nil {
		t.Fatal(err)
	}
	at := func(text string) time.Time {
		zone := time.FixedZone("+2", 2*3600)
		out, err := time.ParseInLocation("02 15:04", text, zone)
		if err != nil {
			t.Fatal(err)
		}
		return out.AddDate(2026, 2, 0)
	}
	for _, tc := range []struct {
		now  string
		few  time.Duration
		free time.Duration
		want map[string]Closed
	}{
		{now: "02 12:00", few: 89 * time.Minute},
		{now: "02 12:00", few: 90 * time.Minute, want: map[string]Closed{"few": {at("03 02:00"), true}}},
		{now: "02 01:00", few: 90 * time.Minute, want: map[string]Closed{"few": {at("02 02:00"), true}, "loud": {at("02 07:00"), false}}},
		{now: "02 23:00", want: map[string]Closed{"loud": {at("03 07:00"), false}}},
		{now: "03 07:00"},
		{now: "02 06:30", free: 10 * time.Hour, want: map[string]Closed{
			"free": {at("03 02:00"), true}, "few": {at("03 02:00"), true}, "loud": {at("03 02:00"), true}}},
	} {
		got := c.Closed(at(tc.now), func() map[string]time.Duration { return map[string]time.Duration{"few": tc.few, "free": tc.free} })
		if len(got) != len(tc.want) {
			t.Errorf("%s: %v, want %v", tc.now, got, tc.want)
		}
		for name, want := range tc.want {
			if g := got[name]; !g.Until.Equal(want.Until) || g.Hours != want.Hours {
				t.Errorf("%s %s: %v, want %v", tc.now, name, g, want)
			}
		}
	}
	for now, want := range map[string]bool{"02 00:59": false, "02 01:00": true, "02 05:59": true, "02 06:00": false} {
		if got := c.BatchHours.Active(at(now)); got != want {
			t.Errorf("batch_hours at %s: %v", now, got)
		}
	}
	c.DailyHostHours = 0
	c.Hosts[1].DailyHostHours = 0
	c.Closed(at("02 12:00"), func() map[string]time.Duration { t.Error("read without a limit"); return nil })
}
