package catalog

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Schedule is a set of minutes, written in the five fields of cron: minute, hour, day of month, month, day of week.
// A field is "*", a number, a range "1-5", a list "1,3" or a step "*/15", "10-40/5"; months and weekdays may be named
// ("jan", "mon"), and Sunday is 0 or 7. As in cron, when both day fields are restricted a day needs to match only one.
// The fields are in the time zone of the time passed in. The zero Schedule never fires.
type Schedule struct {
	text                          string
	minute, hour, dom, month, dow uint64 // bit n: value n fires
	anyDay                        bool   // at least one day field is "*": both must match
}

var cronFields = [...]struct {
	name     string
	min, max int
	names    []string // of min, min+1, ...
}{
	{"minute", 0, 59, nil},
	{"hour", 0, 23, nil},
	{"day of month", 1, 31, nil},
	{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	{"day of week", 0, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

// parseSchedule reads the five fields. It returns an error for a schedule that never fires, such as 30 February.
func parseSchedule(s string) (Schedule, error) {
	fields := strings.Fields(s)
	if len(fields) != len(cronFields) {
		return Schedule{}, fmt.Errorf("a schedule has 5 fields, not %d: minute hour day month weekday", len(fields))
	}
	var set [len(cronFields)]uint64
	for i, f := range fields {
		bits, err := cronBits(i, strings.ToLower(f))
		if err != nil {
			return Schedule{}, fmt.Errorf("%s %q: %w", cronFields[i].name, clip(f), err)
		}
		set[i] = bits
	}
	set[4] = (set[4] | set[4]>>7) & 0x7f // 7 is also Sunday
	out := Schedule{
		text: strings.Join(fields, " "), minute: set[0], hour: set[1], dom: set[2], month: set[3], dow: set[4],
		anyDay: strings.HasPrefix(fields[2], "*") || strings.HasPrefix(fields[4], "*"),
	}
	if out.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Schedule{}, errors.New("the schedule never fires")
	}
	return out, nil
}

func cronBits(field int, s string) (uint64, error) {
	var bits uint64
	for part := range strings.SplitSeq(s, ",") {
		span, stepText, hasStep := strings.Cut(part, "/")
		step := 1
		if hasStep {
			var err error
			if step, err = strconv.Atoi(stepText); err != nil || step < 1 {
				return 0, errors.New("bad step")
			}
		}
		first, last := cronFields[field].min, cronFields[field].max
		if span != "*" {
			from, to, isRange := strings.Cut(span, "-")
			var err error
			if first, err = cronValue(field, from); err != nil {
				return 0, err
			}
			switch {
			case isRange:
				if last, err = cronValue(field, to); err != nil {
					return 0, err
				}
			case !hasStep:
				last = first
			}
		}
		if first > last {
			return 0, errors.New("range runs backwards")
		}
		for v := first; v <= last; v += min(step, 64) {
			bits |= 1 << v
		}
	}
	return bits, nil
}

func cronValue(field int, s string) (int, error) {
	f := cronFields[field]
	for i, name := range f.names {
		if s == name {
			return f.min + i, nil
		}
	}
	v, err := strconv.Atoi(s)
	if err != nil || v < f.min || v > f.max {
		return 0, fmt.Errorf("want %d to %d", f.min, f.max)
	}
	return v, nil
}

// String returns the text the schedule was read from, with its fields separated by one space.
func (s Schedule) String() string { return s.text }

// Next returns the first minute after t at which the schedule fires, at second 0. It returns the zero time if there is
// none within nine years; the longest time between two 29ths of February is shorter.
func (s Schedule) Next(t time.Time) time.Time {
	t = t.Truncate(time.Minute).Add(time.Minute)
	for end := t.AddDate(9, 0, 0); t.Before(end); {
		switch {
		case s.month>>int(t.Month())&1 == 0:
			t = later(t, time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, t.Location()))
		case !s.day(t):
			t = later(t, time.Date(t.Year(), t.Month(), t.Day()+1, 0, 0, 0, 0, t.Location()))
		case s.hour>>t.Hour()&1 == 0:
			t = t.Add(time.Duration(60-t.Minute()) * time.Minute)
		case s.minute>>t.Minute()&1 == 0:
			t = t.Add(time.Minute)
		default:
			return t
		}
	}
	return time.Time{}
}

// later returns next, but always a time after t. If a midnight does not exist because clocks are put forward, time.Date
// may return the hour before it. Then later goes on to the next full hour, so that no minute is skipped.
func later(t, next time.Time) time.Time {
	if next.After(t) {
		return next
	}
	return t.Add(time.Duration(60-t.Minute()) * time.Minute)
}

func (s Schedule) day(t time.Time) bool {
	dom, dow := s.dom>>t.Day()&1 == 1, s.dow>>int(t.Weekday())&1 == 1
	if s.anyDay {
		return dom && dow
	}
	return dom || dow
}

// MarshalText and UnmarshalText write and read the five fields; the zero Schedule is the empty text.
func (s Schedule) MarshalText() ([]byte, error) { return []byte(s.text), nil }

// UnmarshalText is the inverse of MarshalText.
func (s *Schedule) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*s = Schedule{}
		return nil
	}
	parsed, err := parseSchedule(string(b))
	if err == nil {
		*s = parsed
	}
	return err
}
