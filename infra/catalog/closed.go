package catalog

import "time"

// A Period is a time that recurs.
type Period struct {
	// Schedule is when it begins: five fields as in cron, such as 0 23 * * *.
	Schedule Schedule `json:"schedule"`
	// For is how long it lasts.
	For Duration `json:"for"`
}

// Active reports whether now is in the period. The schedule is read in now's location.
func (p *Period) Active(now time.Time) bool { return !p.until(now).IsZero() }

// until returns the end of the period that now is in, or the zero time.
func (p *Period) until(now time.Time) (end time.Time) {
	if p == nil {
		return end
	}
	for began := p.Schedule.Next(now.Add(-time.Duration(p.For))); !began.IsZero() && !began.After(now); began = p.Schedule.Next(began) {
		end = began.Add(time.Duration(p.For))
	}
	return end
}

// Closed says until when a host is not woken.
type Closed struct {
	Until time.Time
	Hours bool // its hours or the pool's are used up for today; else it rests
}

// Closed returns the hosts that are not to be woken at now, by name. awake is how long each host has been awake on
// now's day of UTC.
func (c *Catalog) Closed(now time.Time, awake func() map[string]time.Duration) map[string]Closed {
	limited := c.DailyHostHours > 0
	for _, h := range c.Hosts {
		limited = limited || h.DailyHostHours > 0
	}
	var today map[string]time.Duration
	sum := time.Duration(0)
	if limited {
		today = awake()
		for _, d := range today {
			sum += d
		}
	}
	var out map[string]Closed
	used := func(limit float64, d time.Duration) bool { return limit > 0 && d.Hours() >= limit }
	for _, h := range c.Hosts {
		closed := Closed{Until: h.Rest.until(now)}
		if used(h.DailyHostHours, today[h.Name]) || used(c.DailyHostHours, sum) {
			if end := now.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour); end.After(closed.Until) {
				closed = Closed{end, true}
			}
		}
		if closed.Until.IsZero() {
			continue
		}
		if out == nil {
			out = map[string]Closed{}
		}
		out[h.Name] = closed
	}
	return out
}
